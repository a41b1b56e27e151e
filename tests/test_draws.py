"""Every call draws the random numbers that eager draws, in its order, used or not."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees
from torch import nn

import fxgram

K = 4
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class DeadDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        y = self.linear(x)
        F.dropout(y, 0.5)
        return F.dropout(y, 0.5)


class DeadRand(DeadDropout):
    def forward(self, x):
        torch.rand(3)
        y = F.dropout(self.linear(x), 0.5)
        torch.randn_like(y)
        torch.randint(5, (2,))
        return F.dropout(y, 0.2)


class DeadInNoGrad(DeadDropout):
    def forward(self, x):
        with torch.no_grad():
            torch.bernoulli(torch.full((3,), 0.5))
            F.dropout(self.linear(x), 0.1)
        return F.dropout(self.linear(x), 0.5)


class DeadInPlace(DeadDropout):
    def forward(self, x):
        torch.empty(5).normal_()
        y = self.linear(x)
        y.clone().uniform_()
        return F.dropout(y, 0.5)


class DeadByZero(DeadDropout):
    """A dropout of nothing but zeros and one of rate 0 draw as well, or do not, as eager does."""

    def forward(self, x):
        y = F.dropout(F.dropout(self.linear(x), 0.0), 1.0) + F.dropout(x[:, :1], 0.5)
        return F.dropout(y + self.linear(x), 0.3)


def squares(model, x):
    return model(x).square().sum(1)


def build(cls):
    torch.manual_seed(0)
    return cls().double()


@pytest.mark.parametrize("cls", [DeadDropout, DeadRand, DeadInNoGrad, DeadInPlace, DeadByZero])
def test_draws_what_eager_draws_on_every_call(cls):
    model = build(cls)
    step = fxgram.compile(model, squares)
    for seed in range(3):
        assert_agrees(step, model, squares, X, seed=seed)
