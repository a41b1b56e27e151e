"""What a batch may be: keywords, containers, plain values, several inputs."""

import copy
from dataclasses import dataclass

import pytest
import torch
from agreement import assert_agrees
from oracle import assert_gradients_close, gradient, jacobian, trainable
from torch import nn
from torch.utils._pytree import tree_leaves

import fxgram

K = 4
_generator = torch.Generator().manual_seed(1)
X, Y = (torch.randn(K, 3, generator=_generator, dtype=torch.float64) for _ in range(2))


@pytest.fixture
def model():
    """Give a small network in float64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def squares(model, x):
    return model(x).square().sum(1)


def weighted(model, x, *, scale=1.0, extra=None):
    losses = (scale * model(x)).square().sum(1)
    return losses if extra is None else losses * extra["factor"][0]


def test_keyword_arguments(model):
    step, factor = fxgram.compile(model, weighted), torch.rand(K, dtype=torch.float64)
    assert_agrees(step, model, weighted, X)
    assert_agrees(step, model, weighted, X, extra={"factor": [factor]})
    assert_agrees(step, model, weighted, x=X, scale=2.0)
    assert_agrees(step, model, weighted, X)


def test_nested_containers(model):
    def objective(model, batch, rest):
        return (model(batch["x"][0]) - model_free(batch["x"][1]) + rest[0]).square().sum(1)

    def model_free(y):
        return y[:, :2]

    step = fxgram.compile(model, objective)
    first = {"x": (X, Y)}, [torch.ones(K, 1, dtype=torch.float64)]
    other = {"x": (Y, X)}, [torch.zeros(K, 1, dtype=torch.float64)]
    assert_agrees(step, model, objective, *first)
    assert_agrees(step, model, objective, *other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(True, False), (1.0, 3.0), (1, True), (2, 2.5), ("sum", "mean"), (None, "sum")],
    ids=str,
)
def test_plain_values_that_change_the_result(model, one, other):
    def objective(model, x, mode):
        out = model(x).square()
        if isinstance(mode, str):
            return getattr(out, mode)(1)
        if isinstance(mode, bool):
            return out.sum(1) if mode else -out.sum(1)
        return out.sum(1) if mode is None else 5 * mode * out.sum(1)

    step = fxgram.compile(model, objective)
    for mode in (one, other, one):
        assert_agrees(step, model, objective, X, mode)


def test_several_inputs(model):
    def objective(model, x, y, classes):
        logits = model(x) * y[:, :2]
        return nn.functional.cross_entropy(logits, classes, reduction="none")

    classes = torch.tensor([0, 1, 1, 0])
    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X, Y, classes)
    assert_agrees(step, model, objective, Y[:3], X[:3], classes[:3])


def test_shared_argument(model):
    def objective(model, x, target):
        return (model(x) - target).square().sum(1)

    target = torch.randn(K, 2, dtype=torch.float64)[0]
    step = fxgram.compile(model, objective, batch_dim=(0, None))
    assert_agrees(step, model, objective, X, target)
    assert_agrees(step, model, objective, X[:2], target + 1)


@pytest.mark.parametrize(
    ("batch_dim", "wrap"),
    [
        (1, lambda x, y: (x.t(), y.t())),
        (-1, lambda x, y: (x.t(), y.t())),
        ((1, 0), lambda x, y: (x.t(), y)),
        (({"x": 1}, [0]), lambda x, y: ({"x": x.t()}, [y])),
        (({"x": 0}, -1), lambda x, y: ({"x": x}, [y.t()])),
    ],
    ids=["other", "last", "each", "nested", "nested_last"],
)
def test_samples_on_other_dims(model, batch_dim, wrap):
    def rows(value, dim):
        (tensor,) = tree_leaves(value)
        return tensor.movedim(dim, 0)

    dims = tree_leaves(batch_dim) if isinstance(batch_dim, tuple) else (batch_dim, batch_dim)

    def objective(model, x, y):
        return (model(rows(x, dims[0])) * rows(y, dims[1])[:, :2]).square().sum(1)

    step = fxgram.compile(model, objective, batch_dim=batch_dim)
    for k in (K, 3):
        assert_agrees(step, model, objective, *wrap(X[:k], Y[:k]))


def test_one_tensor_as_two_arguments(model):
    def objective(model, x, y):
        return (model(x) * y[:, :2]).sum(1)

    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X, X)
    assert_agrees(step, model, objective, X, Y)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x], 1)[:, ::2],
        lambda x: x[:1].expand(K, 3),
        lambda x: x.flip(0)[1:],
        lambda x: nn.Parameter(x, requires_grad=False),
    ],
    ids=["transposed", "strided", "expanded", "sliced", "parameter"],
)
def test_memory_layouts(model, view):
    step = fxgram.compile(model, squares)
    assert_agrees(step, model, squares, X)
    assert_agrees(step, model, squares, view(X))
    assert_agrees(fxgram.compile(model, squares), model, squares, view(X))


def test_model_called_twice(model):
    """Equal to the exact answer for two copies of the model."""

    def objective(model, x, y):
        return (model(x) * model(y)).sum(1)

    twins = nn.ModuleList([model, copy.deepcopy(model)])
    rows = jacobian((twins[0](X) * twins[1](Y)).sum(1), trainable(twins).values())
    losses, gramian = fxgram.compile(model, objective)(X, Y)
    torch.testing.assert_close(gramian, rows @ rows.T, rtol=1e-9, atol=1e-9)
    weights = torch.linspace(-1, 2, K, dtype=torch.float64)
    losses.backward(weights)
    wanted = gradient(model, objective, (X, Y), weights)
    assert_gradients_close({n: p.grad for n, p in trainable(model).items()}, wanted, 1e-9)


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


def test_unknown_containers_are_refused_by_name(model):
    step = fxgram.compile(model, lambda model, pair: squares(model, pair.x))
    with pytest.raises(fxgram.InvalidBatch, match=r"args\[0\]. is a Pair.*register_pytree_node"):
        step(Pair(X, Y))


def test_batch_that_the_forward_writes_to(model):
    def objective(model, x):
        x.mul_(2.0)
        return squares(model, x)

    step = fxgram.compile(model, objective)
    mine, eager = X.clone(), X.clone()
    wanted = objective(model, eager)
    losses, _ = step(mine)
    torch.testing.assert_close(losses.detach(), wanted.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mine, eager)
    weights = torch.linspace(-1, 2, K, dtype=torch.float64)
    losses.backward(weights)
    wanted = gradient(model, squares, (2 * X,), weights)
    assert_gradients_close({n: p.grad for n, p in trainable(model).items()}, wanted, 1e-9)


def test_example_compiles_ahead(model, monkeypatch):
    step = fxgram.compile(model, squares, example=(X,))
    monkeypatch.setattr("fxgram.compilation.capture", None)
    assert_agrees(step, model, squares, X[:3])
