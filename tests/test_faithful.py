"""What a graph of operators cannot hold is kept exactly or refused by name."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def squares(model, x):
    return model(x).square().sum(1)


def refused(objective, *batch, model=None):
    """Return the message of the CaptureError that the first call raises."""
    with pytest.raises(fxgram.CaptureError) as caught:
        fxgram.compile(model or linear(), objective)(*(batch or (X,)))
    return str(caught.value)


@pytest.mark.parametrize(
    "objective",
    [
        lambda m, x: Round.apply(m(3 * x)).square().sum(1),
        lambda m, x: squares(m, Round.apply(3 * x)),
    ],
    ids=["of_values", "of_the_batch_alone"],
)
def test_custom_function_is_kept(objective):
    model = linear()
    assert_agrees(fxgram.compile(model, objective), model, objective, X)


@pytest.mark.parametrize("method", ["register_post_accumulate_grad_hook", "retain_grad"])
def test_tensor_hook_of_accumulated_gradients(method):
    def objective(m, x):
        y = m(x) if method != "register_post_accumulate_grad_hook" else m.weight
        getattr(y, method)(*([] if method == "retain_grad" else [lambda grad: None]))
        return squares(m, x)

    assert method in refused(objective)


def scaled_gradient(module, grad_input, grad_output):
    return tuple(g if g is None else 3 * g for g in grad_input)


def scaled_output_gradient(module, grad_output):
    return tuple(3 * g for g in grad_output)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook"])
def test_module_backward_hook(kind, when):
    model = nn.Sequential(linear(), nn.Tanh())
    step = fxgram.compile(model, squares)
    hook = scaled_gradient if kind == "full_backward_hook" else scaled_output_gradient
    if when == "after":
        step(X)
    getattr(model[1], f"register_{kind}")(hook)
    with pytest.raises(fxgram.CaptureError, match=r"backward hooks: 1\b"):
        step(X)


def test_hook_from_inside_a_forward_hook():
    model = nn.Sequential(linear(), nn.Tanh())
    model[0].register_forward_hook(lambda m, args, out: out.register_hook(lambda g: 2 * g) and None)
    assert_agrees(fxgram.compile(model, squares), model, squares, X)


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoint(reached):
    """Without an argument that requires grad nothing gets a gradient through it."""
    model = nn.Sequential(linear(), nn.Dropout(), nn.Linear(2, 2).double())

    def objective(m, x):
        y = m[0](x) + m[2](torch.ones(2, dtype=x.dtype))
        run = m[2] if reached else m[0]
        inside = y if reached else x
        z = checkpoint(lambda v: m[1](run(v)), inside, use_reentrant=True)
        return (y * z).square().sum(1)

    def twin(m, x):
        y = m[0](x) + m[2](torch.ones(2, dtype=x.dtype))
        z = m[1](m[2](y)) if reached else m[1](m[0](x)).detach()
        return (y * z).square().sum(1)

    step = fxgram.compile(model, objective, cross_terms=True)
    assert_agrees(step, model, twin, X)
    assert_agrees(step, model, twin, X[:1])


def test_disabled_autocast_block_is_kept():
    def objective(m, x):
        with torch.autocast("cpu", enabled=False):
            return squares(m, x)

    model = linear()
    assert_agrees(fxgram.compile(model, objective), model, objective, X)


def test_backward_inside_of_the_objective():
    def objective(m, x):
        x = x.detach().requires_grad_()
        squares(m, x).sum().backward(create_graph=True)
        return x.grad.square().sum(1)

    assert "torch.autograd.grad(..., create_graph=True)" in refused(objective)


def detach_in_no_grad(m, x):
    y = m(x)
    with torch.no_grad():
        target = m(x.flip(1)).sigmoid()
    return F.mse_loss(y, target, reduction="none").sum(1)


def enabled_inside_no_grad(m, x):
    with torch.no_grad():
        scale = x.sum(1, keepdim=True)
        with torch.enable_grad():
            y = m(x)
    return (y * scale).square().sum(1)


def set_grad_enabled(m, x):
    torch.set_grad_enabled(False)
    target = m(2 * x)
    torch.set_grad_enabled(True)
    return (m(x) - target).square().sum(1)


@pytest.mark.parametrize(
    "objective",
    [detach_in_no_grad, enabled_inside_no_grad, set_grad_enabled],
    ids=lambda f: f.__name__,
)
def test_blocks_without_gradient_are_kept(objective):
    model = linear()
    assert_agrees(fxgram.compile(model, objective), model, objective, X)


def test_data_of_a_parameter_is_kept_or_named():
    def objective(m, x):
        return (m(x) - x @ m.weight.data.t()).square().sum(1)

    model = linear()
    step = fxgram.compile(model, objective)
    try:
        step(X)
    except fxgram.CaptureError as error:
        assert ".data" in str(error)  # noqa: PT017
    else:
        assert_agrees(step, model, objective, X)


def test_unfaithful_program_names_the_parameter(monkeypatch):
    """Should a hook be lost without anybody noticing, the check against eager still does."""
    monkeypatch.setattr("fxgram.watch._refuse_backward_hooks", lambda model: None)
    model = nn.Sequential(linear(), nn.Tanh())
    model[1].register_full_backward_hook(scaled_gradient)
    with pytest.raises(fxgram.UnfaithfulCapture, match=r"0\.weight"):
        fxgram.compile(model, squares)(X)
