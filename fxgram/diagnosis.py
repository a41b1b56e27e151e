"""Say in the user's words what the passes found wrong."""

import re
from typing import NoReturn

import torch
from torch import fx

from fxgram.capture import Captured
from fxgram.errors import (
    CaptureError,
    CoupledSamples,
    InvalidLosses,
    NoTrainableParameter,
    UncoveredUse,
)
from passes import PassError, operator_name, source_line


def raise_for(error: PassError, captured: Captured) -> NoReturn:
    """Raise the public error for what a pass found.

    Raises: one of the classes of `fxgram.errors`, with the user's lines and the way out.
    """
    raise _DIAGNOSES[error.kind](error, captured) from None


def describe(node: fx.Node) -> str:
    """`layer_norm of [K, 8] at model.py:12: self.norm(x)`."""
    value = node.meta.get("val")
    shape = f" giving {_sizes(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"`{operator_name(node)}`{shape} at {source_line(node)}"


def _readable(error: PassError) -> str:
    return re.sub(r"\bs\d+\b", "K", str(error))


def _sizes(shape: torch.Size) -> str:
    """`[K, 4]`: the one symbol is the number of samples."""
    return "[" + ", ".join(re.sub(r"\bs\d+\b", "K", str(size)) for size in shape) + "]"


def _losses(error: PassError, captured: Captured) -> Exception:
    return InvalidLosses(
        f"batch_dim=0 needs one floating-point loss per sample, but {_readable(error)}. Return a "
        "tensor of shape [K]: use reduction='none' and average over the other dims, e.g. "
        "loss.flatten(1).mean(1)."
    )


def coupled_samples(through: str) -> CoupledSamples:
    """The error for samples that depend on each other through the named operators."""
    return CoupledSamples(
        f"The losses of different samples depend on each other through {through}. With batch_dim=0 "
        "every loss must depend on its own sample alone: put BatchNorm into eval mode or use "
        "another norm, and average over the dims of a sample, not over the batch. Losses that have "
        "to share samples take batch_dim=None."
    )


def _coupled(error: PassError, captured: Captured) -> Exception:
    return coupled_samples("; ".join(describe(n) for n in error.nodes[:3]))


def _uncovered(error: PassError, captured: Captured) -> Exception:
    lines = "".join(f"\n  - {describe(node)}" for node in error.nodes)
    return UncoveredUse(
        f"No rule and no fallback covers these uses of parameters:{lines}\nThe sample axis cannot "
        "be followed there, or the operator is random. Rewrite the operator, register a rule, or "
        "exclude the parameter with requires_grad_(False)."
    )


def _no_parameter(error: PassError, captured: Captured) -> Exception:
    trainable = [i.name for i in captured.inputs.values() if i.trainable]
    found = f"trainable are: {', '.join(trainable[:5])}" if trainable else "none requires grad"
    return NoTrainableParameter(
        f"The losses depend on no parameter that requires grad ({found}). Check requires_grad, "
        "detach() and no_grad() on the way from the parameters to the losses."
    )


def _capture(error: PassError, captured: Captured) -> Exception:
    where = "; ".join(describe(n) for n in error.nodes)
    return CaptureError(f"{error}: {where}." if where else f"{error}.")


def _operator(error: PassError, captured: Captured) -> Exception:
    return CaptureError(f"Not supported: {error}, at {source_line(error.nodes[0])}.")


def _autocast(error: PassError, captured: Captured) -> Exception:
    return CaptureError(
        "The objective opens an autocast block, which is not supported yet: cast explicitly with "
        f".to(dtype) there ({describe(error.nodes[0])})."
    )


def _random(error: PassError, captured: Captured) -> Exception:
    return UncoveredUse(
        f"{error}: {describe(error.nodes[0])}. Draw the noise on its own and combine it with the "
        "parameter by ordinary operators, e.g. w + torch.randn_like(w) * s."
    )


_DIAGNOSES = {
    "losses": _losses,
    "coupled": _coupled,
    "uncovered": _uncovered,
    "no parameter": _no_parameter,
    "region": _capture,
    "operator": _operator,
    "mutation": _capture,
    "autocast": _autocast,
    "random": _random,
}
