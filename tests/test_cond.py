"""`torch.cond` in a forward: both branches run, the one that is taken counts, NaN does not leak."""

import pytest
import torch
from oracle import assert_gradients_close, gradient_of, jacobian, trainable
from torch import nn

import fxgram


class Warmup(nn.Module):
    """One branch while a buffer is zero, another one later; the first is no number for `h < 0`."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        def early(x):
            return self.one(x).tanh() + self.two(x)

        def late(x):
            return (self.two(x) - 100).sqrt() * self.one(x)

        return torch.cond(self.steps > 0, late, early, (x,)).square().sum(1)


def check(model, *batch, objective=None, **options):
    step = fxgram.compile(model, objective, cross_terms=True, **options)
    losses, gramian = step(*batch)
    expected = objective(model, *batch) if objective else model(*batch)
    params = trainable(model)
    rows = jacobian(expected, params.values())
    torch.testing.assert_close(gramian, rows @ rows.T)
    weights = torch.linspace(-1, 2, losses.numel(), dtype=losses.dtype).reshape(losses.shape)
    model.zero_grad()
    losses.backward(weights)
    actual = {name: p.grad for name, p in params.items()}
    assert_gradients_close(actual, gradient_of(expected, params, weights), 1e-9)
    return step


@pytest.fixture
def batch():
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_branch_by_a_buffer(batch):
    step = check(Warmup().double(), batch)
    assert {use.method for use in step.uses} <= {"sum", "region", "rule"}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of PyTorch, about its own tensors
def test_branch_by_data(batch):
    def objective(model, x):
        y = model(x)
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y * y, (y,)).sum(1)

    model = nn.Linear(3, 2).double()
    step = check(model, batch, objective=objective)
    _, other = step(-batch)
    rows = jacobian(objective(model, -batch), trainable(model).values())
    torch.testing.assert_close(other, rows @ rows.T)


def test_random_numbers_in_a_branch_are_refused(batch):
    def objective(model, x):
        y = model(x)
        return torch.cond(
            x.sum() > 0, lambda y: y + torch.rand_like(y), lambda y: y.clone(), (y,)
        ).sum(1)

    step = fxgram.compile(nn.Linear(3, 2).double(), objective)
    with pytest.raises(fxgram.CaptureError, match="random numbers"):
        step(batch)
