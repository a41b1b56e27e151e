"""Calls under `no_grad` and `inference_mode`: losses and Gramian, nothing kept."""

import pytest
import torch
from agreement import assert_agrees
from live_bytes import LiveBytes
from oracle import jacobian, trainable
from torch import nn

import fxgram

K = 4
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def model():
    """Give a small network in float64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def squares(model, x):
    return model(x).square().sum(1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("first", [True, False], ids=["first_call", "later_call"])
def test_without_gradients(model, mode, first):
    rows = jacobian(squares(model, X), trainable(model).values())
    step = fxgram.compile(model, squares)
    if not first:
        step(X)
    with mode():
        losses, gramian = step(X)
    assert not losses.requires_grad
    torch.testing.assert_close(losses.clone(), squares(model, X).detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gramian.clone(), rows @ rows.T, rtol=1e-9, atol=1e-9)
    assert_agrees(step, model, squares, X)


def test_batch_made_under_inference_mode(model):
    with torch.inference_mode():
        x = X.clone()
    step = fxgram.compile(model, squares)
    with torch.inference_mode():
        losses, _ = step(x)
    torch.testing.assert_close(losses.clone(), squares(model, X).detach(), rtol=1e-9, atol=1e-9)


def test_nothing_is_kept(model):
    step = fxgram.compile(model, squares)
    with torch.no_grad():
        step(X)
        with LiveBytes() as live:
            losses, gramian = step(X)
    assert live.count() <= losses.nbytes + gramian.nbytes


def test_kept_parameters_of_inference_mode(model):
    """A backward after calls under inference mode, and calls under it before a backward."""
    step = fxgram.compile(model, squares)
    losses, _ = step(X)
    with torch.inference_mode():
        step(X)
    losses.sum().backward()
    assert_agrees(step, model, squares, X)
