"""Put a compiled gradient graph behind the losses, so that autograd finds it."""

from typing import Any

import torch
from torch import Tensor

from fxgram.autocast import ambient, autocast
from fxgram.errors import UnsupportedBackward
from passes import GradientPart


def attach(
    losses: Tensor, parts: tuple[tuple[GradientPart, list[Tensor], list[Any]], ...]
) -> Tensor:
    """Losses `[K]` whose backward runs the parts of the gradient graph on what each kept.

    Each part comes with its parameters and its saved values. It is a node of its own, the next one
    behind it, so that autograd accumulates its gradients, and frees what it kept, before the next
    one runs. With the weights every part hands on what later ones need of its work.
    """
    if losses._is_view():
        losses = losses.clone()  # users may change losses in place
    carried: dict[str, Any] = {}
    link = None
    for at, (part, parameters, saved) in reversed(list(enumerate(parts))):
        result = [losses] if at == 0 else [torch.empty_like(losses)]
        link = _Part.apply(result, link, part, saved, carried, *parameters)
    return losses if link is None else link


class _Part(torch.autograd.Function):
    """Runs one part of the gradient graph; passes the weights on to the next."""

    @staticmethod
    def forward(
        ctx: Any,
        result: list[Tensor],
        link: Tensor | None,
        part: GradientPart,
        saved: list[Any],
        carried: dict[str, Any],
        *parameters: Tensor,
    ):
        ctx.part, ctx.carried = part, carried
        ctx.numbers = [None if isinstance(v, Tensor) else v for v in saved]
        ctx.save_for_backward(*(v for v in saved if isinstance(v, Tensor)))
        ctx.set_materialize_grads(False)
        return result.pop()

    @staticmethod
    def backward(ctx: Any, weights: Tensor | None) -> tuple:
        nothing = (None, None, None)
        if weights is None:
            return None, None, *nothing, *[None] * len(ctx.part.parameters)
        if torch.is_grad_enabled():
            raise UnsupportedBackward(
                "create_graph=True: the gradient of an fxgram step can't be differentiated again. "
                "Put the derivative into the objective instead."
            )
        weights = weights.contiguous()
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if number is None else number for number in ctx.numbers]
        with autocast(ambient(), enabled=False):
            gradients = ctx.part.run(weights, saved, ctx.carried)
        onward = weights if ctx.needs_input_grad[1] else None
        return None, onward, *nothing, *gradients
