"""Losses of further axes `[K, T]`: one row for each of `losses.flatten()`."""

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram

K, T = 4, 3
X = torch.randn(K, T, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Positions(nn.Module):
    """Losses of a sample depend on all of its positions."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return self.last(hidden + hidden.mean(1, keepdim=True))


LOSSES = {
    "positions": lambda m, x: m(x).square().sum(2),
    "positions_and_outputs": lambda m, x: m(x).square(),
    "one": lambda m, x: m(x).square().sum((1, 2)).unsqueeze(1),
    "transposed": lambda m, x: m(x).square().sum(2).t().contiguous().t(),
}


@pytest.fixture
def model():
    """Give the model in float64."""
    torch.manual_seed(0)
    return Positions().double()


@pytest.mark.parametrize("name", LOSSES)
def test_rows_follow_the_flattened_losses(name, model):
    step = fxgram.compile(model, LOSSES[name])
    for k in (K, 2, 3, 1, 0):
        assert_agrees(step, model, LOSSES[name], X[:k])


def test_weights_of_flattened_losses(model):
    step = fxgram.compile(model, LOSSES["positions"])
    weights = torch.linspace(-1, 2, K * T, dtype=torch.float64)
    losses, gramian = step(X)
    assert gramian.shape == (K * T, K * T)
    losses.flatten().backward(weights)
    wanted = torch.autograd.grad(
        LOSSES["positions"](model, X).flatten(), list(model.parameters()), weights
    )
    for param, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(param.grad, grad, rtol=1e-9, atol=1e-9)


def test_samples_on_another_axis_of_the_losses_are_right_or_refused(model):
    def objective(model, x):
        return model(x).square().sum(2).t()

    step = fxgram.compile(model, objective)
    try:
        step(X)
    except fxgram.InvalidLosses:
        return
    assert_agrees(step, model, objective, X)
    assert_agrees(step, model, objective, X[:3])


def test_coupled_samples_are_still_refused(model):
    def objective(model, x):
        losses = model(x).square().sum(2)
        return losses * losses.flip(0)

    with pytest.raises(fxgram.CoupledSamples):
        fxgram.compile(model, objective)(X)
