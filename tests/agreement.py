"""One call of a compiled step against plain autograd on a copy of the model."""

from copy import deepcopy

import torch
from oracle import (
    assert_close_relative,
    assert_gradients_close,
    assert_gramian_close,
    gradient_of,
    jacobian,
    trainable,
)

RTOL = 1e-9


def assert_agrees(step, model, objective, *batch, seed=0, rtol=RTOL, **kwargs):
    """Compare losses, random draws, Gramian, gradients and buffers; leaves `.grad` None.

    For programs without reuse: there the default Gramian is the exact one.
    """
    eager = deepcopy(model)
    torch.manual_seed(seed)
    call = eager if objective is None else objective
    expected = call(*(() if objective is None else (eager,)), *batch, **kwargs)
    drawn = torch.get_rng_state()
    rows = jacobian(expected, trainable(eager).values())  # follow expected.flatten()

    torch.manual_seed(seed)
    losses, gramian = step(*batch, **kwargs)

    assert torch.equal(torch.get_rng_state(), drawn), "drew other random numbers than eager"
    assert_close_relative(losses.detach(), expected.detach(), rtol, "losses")
    assert torch.equal(gramian, gramian.T)
    assert_gramian_close(gramian, rows @ rows.T, rtol)
    weights = torch.linspace(-1, 2, expected.numel(), dtype=expected.dtype).view_as(expected)
    model.zero_grad(set_to_none=True)
    losses.backward(weights)
    assert_gradients_close(
        {name: p.grad for name, p in trainable(model).items()},
        gradient_of(expected, trainable(eager), weights),
        rtol,
    )
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    for (name, buffer), other in zip(model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(buffer, other, msg=lambda m, n=name: f"{n}: {m}")
    model.zero_grad(set_to_none=True)
