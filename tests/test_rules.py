"""Every registered rule agrees with the backward of its operator, on at least one sample."""

import re
from pathlib import Path

import pytest
import torch
from oracle import assert_gramian_close, gramian
from torch import nn
from zoo.free import Free

import fxgram
from fxgram.rules import linear, markdown_table, registered, registry

aten = torch.ops.aten
K = 5
README = (Path(__file__).parent.parent / "README.md").read_text()


def randn(*shape):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ids(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


CONV = (randn(K, 4, 6), randn(6, 2, 3), randn(6), [2], [1], [1], 2)
NORM = {"weight": randn(4), "bias": randn(4)}
STATISTICS = (randn(4), randn(4).exp())
# What `check_rule` gets behind the operator and the argument; keywords as it takes them.
CALLS = {
    "linear": ((randn(K, 2, 3), randn(4, 3), randn(4)), {}),
    "linear.input": ((randn(2, 3), randn(K, 3)), {"batch_dim": (0,), "output_dim": 1}),
    "mm.mat2": ((randn(K, 3), randn(3, 4)), {}),
    "mm.self": ((randn(4, 3), randn(3, K)), {"batch_dim": (1,), "output_dim": 1}),
    "addmm.self": ((randn(4), randn(K, 3), randn(3, 4)), {"beta": 2.0, "batch_dim": (0, None)}),
    "addmm.mat2": ((randn(4), randn(K, 3), randn(3, 4)), {"alpha": 2.0, "batch_dim": (None, 0)}),
    "addmm.mat1": (
        (randn(4, 1), randn(4, 3), randn(3, K)),
        {"batch_dim": (None, 1), "output_dim": 1},
    ),
    "bmm.mat2": ((randn(2, K, 3), randn(2, 3, 4)), {"batch_dim": 1, "output_dim": 1}),
    "bmm.self": ((randn(2, 4, 3), randn(2, 3, K)), {"batch_dim": 2, "output_dim": 2}),
    "baddbmm.self": (
        (randn(4), randn(K, 2, 3), randn(K, 3, 4)),
        {"beta": 0.5},
    ),
    "baddbmm.batch2": (
        (randn(2, K, 4), randn(2, K, 3), randn(2, 3, 4)),
        {"alpha": 2.0, "batch_dim": 1, "output_dim": 1},
    ),
    "baddbmm.batch1": (
        (randn(2, 4, K), randn(2, 4, 3), randn(2, 3, K)),
        {"batch_dim": 2, "output_dim": 2},
    ),
    "addmv.self": ((randn(1), randn(K, 3), randn(3)), {"batch_dim": (0, None)}),
    "addmv.vec": ((randn(K), randn(K, 3), randn(3)), {"alpha": 3.0}),
    "mv.vec": ((randn(K, 3), randn(3)), {}),
    "matmul.other": ((randn(K, 2, 3), randn(3, 4)), {}),
    "matmul.self": ((randn(4, 3), randn(K, 3, 2)), {}),
    "tensordot.other": ((randn(K, 2, 3), randn(3, 4), [2], [0]), {}),
    "tensordot.self": ((randn(4, 3), randn(K, 2, 3), [1], [2]), {"output_dim": 1}),
    "bilinear": ((randn(K, 2, 3), randn(K, 2, 4), randn(5, 3, 4), randn(5)), {}),
    "cdist.x2": ((randn(K, 3), randn(4, 3), 2.0, None), {}),
    "embedding.weight": ((randn(7, 3), ids(7, K, 2), 1), {}),
    "expand_as.self": ((randn(3), randn(K, 2, 3)), {}),
    "fill.value": ((randn(K, 3), randn(1)[0]), {}),
    "masked_fill.value": ((randn(K, 3), ids(2, K, 3).bool(), randn(1)[0]), {}),
    "prelu.weight": ((randn(K, 4, 2), randn(4)), {}),
    "layer_norm": ((randn(K, 3, 4), [4]), NORM),
    "group_norm": ((randn(K, 4, 3), 2), NORM),
    "instance_norm": ((randn(K, 4, 3), *NORM.values(), None, None, True, 0.1, 1e-5, False), {}),
    "batch_norm": (
        (randn(K, 4, 3), *NORM.values(), *STATISTICS, False, 0.1, 1e-5, False),
        {"batch_dim": (0, None, None, None)},
    ),
    "_native_batch_norm_legit_functional": (
        (randn(K, 4, 3), *NORM.values(), *STATISTICS, True, 0.1, 1e-5),
        {"batch_dim": (0, None, None, None)},
    ),
    "rms_norm.weight": ((randn(K, 3, 4), [4], randn(4), 1e-5), {}),
    "conv1d": (CONV, {}),
    "conv2d": (
        (randn(K, 4, 5, 6), randn(6, 2, 3, 2), randn(6), [1, 2], [1, 0], [2, 1], 2),
        {},
    ),
    "conv3d": ((randn(K, 2, 3, 4, 3), randn(3, 2, 2, 2, 2), randn(3)), {}),
    "conv1d.padding": ((randn(K, 2, 6), randn(3, 2, 3), randn(3), [1], "same", [2]), {}),
    "conv2d.padding": ((randn(K, 2, 5, 6), randn(3, 2, 3, 5), randn(3), [1], "same"), {}),
    "conv3d.padding": ((randn(K, 2, 3, 4, 3), randn(3, 2, 2, 2, 2), randn(3), [1], "valid"), {}),
    "conv_transpose1d": ((randn(K, 4, 5), randn(4, 3, 3), randn(6), [2], [1], [1], 2, [1]), {}),
    "conv_transpose2d": ((randn(K, 2, 3, 4), randn(2, 3, 2, 3), randn(3), [1, 2]), {}),
    "conv_transpose3d": ((randn(K, 2, 2, 3, 2), randn(2, 3, 2, 2, 2), randn(3)), {}),
}
# Arguments that `check_rule` can't play: operands in lists, operators without data.
MODULES = {
    "einsum.tensors": lambda x, w: torch.einsum("ksi,oi->kso", x, w),
    "expand.self": lambda x, w: x[:, :1] * w[0].expand(len(x), 2, 3),
}


def sample_of(op, argument):
    """The key of the sample for a rule, the most special first."""
    name, overload = op._opname, op._overloadname
    keys = (f"{name}.{overload}", f"{name}.{argument}", name)
    return next((k for k in keys if k in CALLS or k in MODULES), None)


@pytest.mark.parametrize(("op", "argument"), registered(), ids=lambda v: str(v))
def test_rule_agrees_with_the_backward_of_its_operator(op, argument):
    key = sample_of(op, argument)
    assert key is not None, f"no sample for {op} {argument}"
    if key in MODULES:
        _check_module(MODULES[key])
        return
    args, options = CALLS[key]
    others = [a for a in args if isinstance(a, torch.Tensor)]
    options = dict(options)
    if "batch_dim" not in options:
        names = [a.name for a in op._schema.arguments]
        tensors = [n for n, a in zip(names, args) if isinstance(a, torch.Tensor)]
        tensors += [n for n, a in options.items() if isinstance(a, torch.Tensor)]
        dims = [0 if others and _is_batched(args, options, n, names) else None for n in tensors]
        options["batch_dim"] = tuple(d for n, d in zip(tensors, dims) if n != argument)
    fxgram.check_rule(op, argument, *args, **options)


def _is_batched(args, options, name, names):
    value = options[name] if name in options else args[names.index(name)]
    return value.ndim > 0 and value.shape[0] == K and name not in ("weight", "bias")


class _Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.w, self.function = nn.Parameter(randn(4, 3)), function

    def forward(self, x):
        return self.function(x, self.w).sin().flatten(1).sum(1)


def _check_module(function):
    model = _Module(function)
    step = fxgram.compile(model)
    _, actual = step(randn(K, 2, 3))
    assert {row.method for row in step.uses} == {"rule"}
    assert_gramian_close(actual, gramian(model, None, (randn(K, 2, 3),)), 1e-9, "")


def test_wrong_rule_is_caught(monkeypatch):
    def doubled(call):
        twice = call.emitter.call(aten.mul.Tensor, call.cotangent(), 2)
        return linear.product_factors(call, "oi", "ko", (call["input"], "ki"), cotangent=twice)

    monkeypatch.setitem(registry._TABLE, (aten.linear.default, "weight"), doubled)
    with pytest.raises(fxgram.WrongRule, match="another Gramian"):
        fxgram.check_rule(aten.linear.default, "weight", randn(K, 3), randn(4, 3))


def test_check_rule_names_what_is_missing():
    with pytest.raises(fxgram.InvalidArgument, match="no rule"):
        fxgram.check_rule(aten.sort.default, "self", randn(K, 3))
    with pytest.raises(fxgram.InvalidArgument, match="no tensor"):
        fxgram.check_rule(aten.linear.default, "bias", randn(K, 3), randn(4, 3))


def test_rule_in_the_readme(monkeypatch):
    """The example runs, its rule is used, and a slip in it is caught."""
    (example,) = [
        b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "@fxgram.rule" in b
    ]
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    found = {}
    exec(example, found)
    model = Free(lambda m, x: torch.ops.mine.sine_product(x, m.w), w=(3, 2)).double()
    objective = lambda m, x: m(x).cos().sum(1)  # noqa: E731
    step = fxgram.compile(model, objective)
    for k in (1, 3, 8):
        _, actual = step(randn(k, 3))
        assert_gramian_close(actual, gramian(model, objective, (randn(k, 3),)), 1e-9, "")
    assert {row.method for row in step.uses} == {"rule"}

    @fxgram.rule(found["op"], "w")
    def without_the_sine(call):
        return found["product_factors"](call, "io", "ko", (call["x"], "ki"))

    with pytest.raises(fxgram.WrongRule, match="another Gramian"):
        fxgram.check_rule(found["op"], "w", randn(5, 3), randn(3, 2))


def test_readme_lists_the_operators():
    assert markdown_table() in README, "paste `python -m fxgram.rules.table` into README.md"
