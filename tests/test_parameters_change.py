"""Parameters that change in place between the step and its backward."""

import pytest
import torch
from oracle import assert_gradients_close, gradient, trainable
from torch import nn

import fxgram

K, RTOL = 4, 1e-9
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
W = torch.linspace(-1, 2, K, dtype=torch.float64)


class WeightNormed(nn.Module):
    """Its gradient graph reads `v` and `g`: they enter through arithmetic."""

    def __init__(self):
        super().__init__()
        self.v, self.g = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.ones(2, 1))

    def forward(self, x):
        weight = self.g * self.v / self.v.norm(dim=1, keepdim=True)
        return nn.functional.linear(x, weight).sin()


def squares(model, x):
    return model(x).square().sum(1)


def run(model):
    """Step, change all parameters, backward; also return the gradient before the change."""
    step = fxgram.compile(model, squares)
    losses, _ = step(X)
    wanted = gradient(model, squares, (X,), W)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1.0)
    losses.backward(W)
    return {name: p.grad for name, p in trainable(model).items()}, wanted


def test_plain_layers_use_the_values_of_the_forward():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    assert_gradients_close(*run(model), RTOL)


def test_arithmetic_on_parameters_is_right_or_a_version_error():
    torch.manual_seed(0)
    try:
        actual, wanted = run(WeightNormed().double())
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
    else:
        assert_gradients_close(actual, wanted, RTOL)


def test_weight_norm_of_torch_is_right_or_a_version_error():
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).double()
    try:
        actual, wanted = run(layer)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
    else:
        assert_gradients_close(actual, wanted, RTOL)


def test_optimizer_between_steps():
    """An optimizer step between two steps is no change between a step and its backward."""
    torch.manual_seed(0)
    model = WeightNormed().double()
    step, optimizer = fxgram.compile(model, squares), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        wanted = gradient(model, squares, (X,), W)
        step(X)[0].backward(W)
        assert_gradients_close({name: p.grad for name, p in trainable(model).items()}, wanted, RTOL)
        optimizer.step()


class GrowingScale(nn.Module):
    """The buffer that scales the weight gets a new value in every forward."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 3))
        self.register_buffer("scale", torch.ones(2, 1))

    def forward(self, x):
        out = nn.functional.linear(x, self.w * self.scale)
        self.scale = self.scale + 1
        return out


@pytest.mark.parametrize("steps", [1, 2])
def test_buffer_assigned_in_the_forward_does_not_disturb_its_backward(steps):
    torch.manual_seed(0)
    model = GrowingScale().double()
    step, total = fxgram.compile(model, squares), 0
    losses = []
    for at in range(steps):
        losses.append(step(X)[0])
        scale = torch.full((2, 1), at + 1.0, dtype=torch.float64)
        w = model.w.detach().clone().requires_grad_()
        rows = nn.functional.linear(X, w * scale).square().sum(1)
        total = total + torch.autograd.grad(rows, w, W)[0]
    for one in losses:
        one.backward(W)
    torch.testing.assert_close(model.w.grad, total, rtol=RTOL, atol=1e-12)
