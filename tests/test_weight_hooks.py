"""Hooks that compute a weight before each forward: weight norm, spectral norm and pruning.

A module with such a hook can't be copied, so the eager model is built a second time.
"""

import pytest
import torch
from oracle import (
    assert_close_relative,
    assert_gradients_close,
    assert_gramian_close,
    gradient_of,
    jacobian,
    trainable,
)
from torch import nn
from torch.nn.utils import prune

import fxgram

D = 3


def weight_norm(layer):
    return torch.nn.utils.weight_norm(layer)


def spectral_norm(layer):
    return torch.nn.utils.spectral_norm(layer)


def pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.4)


def build(hook):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), hook(nn.Linear(4, 2))).double()


def objective(model, x):
    return model(x).sin().sum(1)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("hook", [weight_norm, spectral_norm, pruned])
def test_weights_computed_by_hooks(hook):
    model, eager = build(hook), build(hook)
    step = fxgram.compile(model, objective)
    for k in (1, 3, 8, 0):
        x = torch.randn(k, D, dtype=torch.float64)
        expected = objective(eager, x)
        rows = jacobian(expected, trainable(eager).values())
        losses, gramian = step(x)
        assert_close_relative(losses.detach(), expected.detach(), 1e-9)
        assert_gramian_close(gramian, rows @ rows.T, 1e-9)
        losses.sum().backward()
        assert_gradients_close(
            {name: p.grad for name, p in trainable(model).items()},
            gradient_of(expected, trainable(eager), torch.ones_like(expected)),
            1e-9,
        )
        model.zero_grad(set_to_none=True)
        for buffer, other in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(buffer, other)
