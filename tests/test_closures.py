"""What an objective closes over: constants by reference; what requires grad is refused by name."""

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def squares(model, x):
    return model(x).square().sum(1)


def refused(objective):
    """Return the message of the CaptureError that the first call raises."""
    with pytest.raises(fxgram.CaptureError) as caught:
        fxgram.compile(linear(), objective)(X)
    return str(caught.value)


def test_closed_over_tensor_that_requires_grad():
    scale = torch.rand(2, dtype=torch.float64, requires_grad=True)
    message = refused(lambda m, x: (scale * m(x)).square().sum(1))
    assert "scale" in message
    assert "requires grad" in message


def test_closed_over_result_that_requires_grad():
    scale = torch.rand(2, dtype=torch.float64, requires_grad=True)
    doubled = 2 * scale
    message = refused(lambda m, x: (doubled * m(x)).square().sum(1))
    assert "doubled" in message


def test_closed_over_module():
    other = linear()
    message = refused(lambda m, x: (m(x) * other(x)).sum(1))
    assert "other" in message
    assert "requires grad" in message


def test_closed_over_frozen_module_and_constants_are_read_anew():
    other, scale, model = linear().requires_grad_(False), torch.ones(2).double(), linear()

    def objective(m, x):
        return (scale * m(x) - other(x)).square().sum(1)

    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X)
    scale.mul_(2.0)
    other.weight.add_(1.0)
    assert_agrees(step, model, objective, X)


def test_closed_over_plain_values_recompile():
    rate, model = 1.0, linear()

    def objective(m, x):
        return rate * squares(m, x)

    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X)
    rate = 3.0
    assert_agrees(step, model, objective, X)


def test_closed_over_parameter_of_the_model():
    """It is no foreign tensor, even under a second name."""
    model = linear()
    weight = model.weight
    step = fxgram.compile(model, lambda m, x: squares(m, x) + x.sum(1) * weight.square().sum())
    try:
        step(X)
    except fxgram.FxgramError as error:
        assert "weight" in str(error)  # noqa: PT017
        return
    losses, _ = step(X)
    wanted = squares(model, X) + X.sum(1) * weight.square().sum()
    (grad,) = torch.autograd.grad(wanted.sum(), weight)
    losses.sum().backward()
    torch.testing.assert_close(weight.grad, grad, rtol=1e-9, atol=1e-9)


def test_closed_over_model_itself():
    model = linear()

    def objective(m, x):
        return squares(model, x)

    assert_agrees(fxgram.compile(model, objective), model, lambda m, x: squares(m, x), X)
