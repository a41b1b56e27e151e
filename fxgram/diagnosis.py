"""Say in the user's words what the passes found wrong."""

import re
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import fx

from fxgram.capture_errors import control_flow
from fxgram.captured import Captured
from fxgram.errors import (
    CaptureError,
    CoupledSamples,
    FxgramError,
    InvalidArgument,
    InvalidLosses,
    NoTrainableParameter,
    UncoveredUse,
)
from passes import PassError, has_foreign_backward, operator_name, source_line


def raise_for(error: PassError, captured: Captured) -> NoReturn:
    """Raise the public error for what a pass found.

    Raises: one of the classes of `fxgram.errors`, with the user's lines and the way out.
    """
    raise _DIAGNOSES[error.kind](error, captured) from error.__cause__


def untraceable(error: Exception) -> CaptureError:
    """The error for an operator that PyTorch cannot run, or differentiate, on symbolic sizes."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return CaptureError(
        f"PyTorch cannot trace the backward of this forward: {type(error).__name__}: {first}. "
        "Replace the operator, or write it with others."
    )


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
        "loss.flatten(1).mean(1). Losses that share samples (one for each task, say) take "
        "batch_dim=None."
    )


def coupled_samples(nodes: Sequence[fx.Node], otherwise: str = "") -> FxgramError:
    """The error for cotangents that mix samples at these operators (`otherwise`: somewhere)."""
    through = "; ".join(map(describe, nodes[:3])) or otherwise
    if any(map(has_foreign_backward, nodes)):
        return CaptureError(
            f"The gradient that comes out of {through} is not proportional to the gradient that "
            "goes in, sample by sample: the custom backward or hook clips it, say, or mixes "
            "samples. Then the gradients of the losses do not add up to that of their sum: change "
            "`.grad` after the backward instead."
        )
    return CoupledSamples(
        f"The losses of different samples depend on each other through {through}. With batch_dim=0 "
        "every loss must depend on its own sample alone: put BatchNorm into eval mode or use "
        "another norm, and average over the dims of a sample, not over the batch. Losses that have "
        "to share samples take batch_dim=None."
    )


def _coupled(error: PassError, captured: Captured) -> Exception:
    return coupled_samples(error.nodes)


def _rule(error: PassError, captured: Captured) -> Exception:
    return InvalidArgument(f"{str(error).capitalize()} returned no Factors.")


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


def _backward(error: PassError, captured: Captured) -> Exception:
    where = "; ".join(map(describe, error.nodes[:3]))
    return CaptureError(
        f"The backward of custom functions or hooks could not be traced ({where}). It has to "
        f"consist of PyTorch's operators, without decisions by values. {error}"
    )


def _control_flow(error: PassError, captured: Captured) -> Exception:
    return control_flow(f" (here {error}) at {source_line(error.nodes[0])}")


def _random(error: PassError, captured: Captured) -> Exception:
    return UncoveredUse(
        f"{error}: {describe(error.nodes[0])}. Draw the noise on its own and combine it with the "
        "parameter by ordinary operators, e.g. w + torch.randn_like(w) * s."
    )


def _derivative(error: PassError, captured: Captured) -> Exception:
    return CaptureError(
        f"PyTorch can't differentiate the objective once more for the Gramian: {error} Write what "
        "is differentiated inside with other operators (for attention, say, "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH); for an LSTM, cells)."
    )


_DIAGNOSES = {
    "derivative": _derivative,
    "losses": _losses,
    "coupled": _coupled,
    "uncovered": _uncovered,
    "rule": _rule,
    "no parameter": _no_parameter,
    "region": _capture,
    "operator": _operator,
    "control flow": _control_flow,
    "mutation": _capture,
    "backward": _backward,
    "random": _random,
}
