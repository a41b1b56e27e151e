"""What the answers are, from autograd alone: one backward per loss, slow and plain.

Index legend: m = number of losses, P = number of trainable scalars.
Nothing here seeds a random generator: callers do, before each call that runs a model.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Objective = Callable[..., Tensor]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require grad by name, a tied one under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def evaluate(model: nn.Module, objective: Objective | None, batch: tuple) -> Tensor:
    """Return the losses; without an objective the model itself returns them."""
    return model(*batch) if objective is None else objective(model, *batch)


def jacobian(losses: Tensor, params: Iterable[Tensor]) -> Tensor:
    """Return the Jacobian `[m, P]` of `losses.flatten()`; zeros where a loss reaches nothing.

    Complex parameters count as real and imaginary parts. Cost: m backward passes.
    """
    params, losses = list(params), losses.flatten()
    scalars = sum(p.numel() * (2 if p.is_complex() else 1) for p in params)
    rows = losses.new_zeros(len(losses), scalars)
    if not losses.requires_grad:
        return rows
    for row, cotangent in zip(rows, torch.eye(len(losses), dtype=losses.dtype), strict=True):
        grads = torch.autograd.grad(
            losses, params, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        row.copy_(torch.cat([_real(grad).flatten() for grad in grads]))
    return rows


def gramian(model: nn.Module, objective: Objective | None, batch: tuple) -> Tensor:
    """Return the exact Gramian `J Jᵀ` `[m, m]` with respect to the trainable parameters.

    The default mode of fxgram equals this on an untied twin, where every use has its own copy.
    """
    rows = jacobian(evaluate(model, objective, batch), trainable(model).values())
    return rows @ rows.T


def gradient(
    model: nn.Module, objective: Objective | None, batch: tuple, weights: Tensor
) -> dict[str, Tensor | None]:
    """Return `wᵀJ` by parameter name, summed over all uses; None where autograd reaches nothing.

    `weights` is shaped like the losses.
    """
    return gradient_of(evaluate(model, objective, batch), trainable(model), weights)


def gradient_of(
    losses: Tensor, params: dict[str, nn.Parameter], weights: Tensor
) -> dict[str, Tensor | None]:
    """Return `wᵀJ` by parameter name for losses that are already there, and keep their graph."""
    grads = torch.autograd.grad(
        losses, list(params.values()), weights, retain_graph=True, allow_unused=True
    )
    return dict(zip(params, grads, strict=True))


def sum_over_copies(
    grads: dict[str, Tensor | None], originals: dict[str, str]
) -> dict[str, Tensor | None]:
    """Turn a twin's gradients into the original's: copies of one parameter add up.

    `originals` maps the twin's parameter names to the original's.
    """
    summed: dict[str, Tensor | None] = {}
    for name, grad in grads.items():
        before = summed.get(originals[name])
        both = before is not None and grad is not None
        summed[originals[name]] = before + grad if both else (grad if before is None else before)
    return summed


def assert_close_relative(actual: Tensor, expected: Tensor, rtol: float, what: str = "") -> None:
    """Compare up to `rtol` times the largest absolute value of `expected`."""
    assert actual.shape == expected.shape, f"{what}: {actual.shape} is not {expected.shape}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype} is not {expected.dtype}"
    _assert_within(actual, expected, rtol * _largest(expected), what)


def assert_gramian_close(actual: Tensor, expected: Tensor, rtol: float, what: str = "") -> None:
    """Compare whole Gramians, and their off-diagonals relative to the largest off-diagonal.

    Off-diagonals that vanish by cancellation may differ by the rounding of the diagonal.
    """
    assert_close_relative(actual, expected, rtol, f"{what} gramian")
    off = ~torch.eye(len(expected), dtype=torch.bool)
    rounding = 64 * torch.finfo(expected.dtype).eps * _largest(expected)
    within = max(rtol * _largest(expected[off]), rounding)
    _assert_within(actual[off], expected[off], within, f"{what} off-diagonals")


def assert_gradients_close(
    actual: dict[str, Tensor | None], expected: dict[str, Tensor | None], rtol: float
) -> None:
    """Compare gradients by name, relative to the largest entry among all, and where they are None.

    One scale for all: a bias before a norm has a gradient that is rounding noise alone.
    """
    assert actual.keys() == expected.keys()
    assert {n for n, g in actual.items() if g is None} == {
        n for n, g in expected.items() if g is None
    }, "None in other places than autograd"
    grads = {name: grad for name, grad in expected.items() if grad is not None}
    scale = max((_largest(grad) for grad in grads.values()), default=0.0)
    for name, grad in grads.items():
        assert (actual[name].shape, actual[name].dtype) == (grad.shape, grad.dtype), name
        _assert_within(actual[name], grad, rtol * scale, f"gradient of {name}")


def _assert_within(actual: Tensor, expected: Tensor, within: float, what: str) -> None:
    error = _largest(actual - expected)
    assert error <= within, f"{what}: off by {error:.3g}, allowed {within:.3g}"


def _largest(tensor: Tensor) -> float:
    return tensor.detach().abs().max().item() if tensor.numel() else 0.0


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
