"""Losses that share samples go backward together, as many as the memory budget admits."""

import pytest
import torch
from oracle import jacobian, trainable
from torch import nn

import fxgram


def distances(model, x):
    y = model(x)
    return torch.cdist(y, y).mean(1)


@pytest.mark.parametrize(("budget", "rows"), [(None, 40), ("600kB", 39)])
def test_rows_follow_the_budget(budget, rows):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    x = torch.randn(40, 3, dtype=torch.float64)
    step = fxgram.compile(model, distances, batch_dim=None, memory_budget=budget)
    _, gramian = step(x)
    expected = jacobian(distances(model, x), trainable(model).values())
    torch.testing.assert_close(gramian, expected @ expected.T)
    at_once = min(step._last.spec.rows, 40)
    assert (at_once == 40) if budget is None else (1 <= at_once <= rows)
