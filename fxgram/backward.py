"""Put a compiled gradient graph behind the losses, so that autograd finds it."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from fxgram.autocast import ambient, autocast
from fxgram.errors import UnsupportedBackward
from passes import GradientPart


def attach(
    losses: Tensor, parts: tuple[tuple[GradientPart, list[Tensor], list[Any]], ...]
) -> Tensor:
    """Losses `[K]` whose backward runs the gradient graph of each part on what it kept.

    Each part comes with its parameters and its saved values. A part is a node of its own, whose
    gradients are accumulated, and whose saved values are freed, before the next one runs.
    """
    if losses._is_view():
        losses = losses.clone()  # users may change losses in place
    ends = [_Part.apply(losses, part, saved, *parameters) for part, parameters, saved in parts]
    return _Losses.apply([losses], *ends)


def _refuse_create_graph() -> None:
    if torch.is_grad_enabled():
        raise UnsupportedBackward(
            "create_graph=True: the gradient of an fxgram step can't be differentiated again. Put "
            "the derivative into the objective instead."
        )


class _Losses(torch.autograd.Function):
    """Hands the weights on to every part."""

    @staticmethod
    def forward(ctx: FunctionCtx, box: list[Tensor], *ends: Tensor) -> Tensor:
        ctx.count = len(ends)
        ctx.set_materialize_grads(False)
        return box.pop()

    @staticmethod
    def backward(ctx: Any, weights: Tensor | None) -> tuple:
        _refuse_create_graph()
        weights = None if weights is None else weights.contiguous()
        return None, *[weights] * ctx.count


class _Part(torch.autograd.Function):
    """Runs one part of the gradient graph."""

    @staticmethod
    def forward(
        ctx: Any, losses: Tensor, part: GradientPart, saved: list[Any], *parameters: Tensor
    ):
        ctx.part = part
        ctx.numbers = [None if isinstance(v, Tensor) else v for v in saved]
        ctx.save_for_backward(*(v for v in saved if isinstance(v, Tensor)))
        ctx.set_materialize_grads(False)
        return torch.empty_like(losses)

    @staticmethod
    def backward(ctx: Any, weights: Tensor | None) -> tuple:
        nothing = (None, None, None)
        if weights is None:
            return *nothing, *[None] * len(ctx.part.parameters)
        _refuse_create_graph()
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if number is None else number for number in ctx.numbers]
        with autocast(ambient(), enabled=False):
            return *nothing, *ctx.part.module.forward(weights, *saved)
