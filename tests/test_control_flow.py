"""Branches and sizes that depend on values or on the batch size; random numbers of Python."""

import random

import numpy
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


@pytest.mark.parametrize(
    "draw",
    [random.random, numpy.random.rand, lambda: random.choice([1.0, 2.0])],
    ids=["python", "numpy", "choice"],
)
def test_randomness_of_python_and_numpy(draw):
    message = refused(lambda m, x: draw() * squares(m, x))
    assert "random generator" in message
    assert "torch.rand" in message


@pytest.mark.parametrize(
    "objective",
    [
        lambda m, x: squares(m, x) if x.sum() > 0 else squares(m, 2 * x),
        lambda m, x: squares(m, x) * m(x).sum().item(),
        lambda m, x: squares(m, x[x[:, 0] > 0]),
    ],
    ids=["if", "item", "mask"],
)
def test_control_flow_on_values(objective):
    """Every one of these lines is in the message."""
    message = refused(objective)
    assert "test_control_flow.py:" in message
    assert "lambda m, x: squares(m, x" in message
    assert "torch.where" in message


@pytest.mark.parametrize(
    "objective",
    [
        lambda m, x: m(x.view(5, 3)).square().sum(1),
        lambda m, x: torch.stack([m(row).square().sum() for row in x]),
        lambda m, x: squares(m, x) + torch.ones(5, dtype=torch.float64),
    ],
    ids=["view", "loop", "constant"],
)
def test_fixed_batch_size(objective):
    message = refused(objective)
    assert "batch size" in message
    assert "len(x)" in message
    assert "test_control_flow.py:" in message


@pytest.mark.parametrize("sizes", [(5, 3, 6), (3, 5, 2)])
def test_decision_by_the_batch_size_is_right_or_refused(sizes):
    def objective(m, x):
        return squares(m, x) * (2 if len(x) > 4 else 1)

    model = linear()
    step = fxgram.compile(model, objective)
    for k in sizes:
        x = torch.randn(k, 3, dtype=torch.float64)
        try:
            step(x)
        except fxgram.CaptureError as error:
            assert "batch size" in str(error)  # noqa: PT017
        else:
            assert_agrees(step, model, objective, x)
