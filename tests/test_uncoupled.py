"""What only looks as if it coupled the samples: right, or refused, but never wrong."""

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear():
    return nn.Linear(3, 4)


def batch_normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


def rows(y):
    return y.square().sum(1)


def build(make):
    torch.manual_seed(0)
    return make().double()


def detached_mean(m, x):
    y = m(x)
    return rows(y - y.mean(0).detach())


def statistics_without_gradient(m, x):
    y = m(x)
    with torch.no_grad():
        mean, deviation = y.mean(0), y.std(0)
    return rows((y - mean) / (deviation + 1))


def data_mixed_before_the_model(m, x):
    return rows(m(x + x.flip(0)))


def data_normalized_over_the_batch(m, x):
    return rows(m((x - x.mean(0)) / (x.std(0) + 1)))


def flipped_twice(m, x):
    return rows(m(x.flip(0)).flip(0))


def flipped_and_unused(m, x):
    y = m(x)
    y.flip(0).sum()
    return rows(y)


def positions_major(m, x):
    both = torch.stack([x, x.cos()], 1).transpose(0, 1).reshape(-1, 3)
    return m(both).square().view(2, len(x), 4).sum((0, 2))


def batch_norm_in_eval(m, x):
    return rows(m.eval()(x))


UNCOUPLED = [
    (linear, detached_mean),
    (linear, statistics_without_gradient),
    (linear, data_mixed_before_the_model),
    (linear, data_normalized_over_the_batch),
    (linear, flipped_twice),
    (linear, flipped_and_unused),
    (linear, positions_major),
    (batch_normed, batch_norm_in_eval),
]


@pytest.mark.parametrize(
    ("make", "objective"), UNCOUPLED, ids=lambda v: getattr(v, "__name__", None)
)
def test_what_only_looks_coupled_is_right_or_refused(make, objective):
    """Data may mix samples where no gradient passes; refusing is allowed, a wrong answer is not."""
    model = build(make)
    step = fxgram.compile(model, objective)
    try:
        step(X)
    except fxgram.CoupledSamples:
        return
    assert_agrees(step, model, objective, X)
    assert_agrees(step, model, objective, X[:3])
