"""The rule of look-ups: `embedding` reads rows of a parameter, and other picks are spelled so."""

import math
from functools import partial

import torch
from torch import fx

from fxgram.rules.registry import rule
from passes import Factors, NotFactored, Operands

aten = torch.ops.aten


def _rows_looked_up(call: Operands, ids: fx.Node, gradient: fx.Node) -> Factors:
    """`y[..., :] = v[ids[...]]`: one unit vector over the rows of `v` for each position."""
    shape = call.shape
    columns = math.prod(shape[1:])
    axis = call.cotangent_axis()
    if axis != call.axis(ids):
        raise NotFactored
    lookups = call.rows(ids, axis, 0)
    gradients = call.rows(gradient, axis, len(shape) - 1)
    gradients = call.reshape_rows(gradients, [gradients.meta["val"].shape[1], columns])
    return Factors("ksv,ksd->vd", (lookups, gradients), one_hot=shape[0])


@rule(aten.embedding.default, "weight")
def embedding_weight(call: Operands) -> Factors:
    """Rows of the table by id; positions of `padding_idx` carry no gradient."""
    ids, gradient, padding = call["indices"], call.cotangent(), call["padding_idx"]
    if call["scale_grad_by_freq"]:
        gradient = call.trace(partial(_by_frequency, call.shape[0]), gradient, ids)
    if padding >= 0:
        emit = call.emitter.call
        mask = emit(aten.unsqueeze.default, emit(aten.eq.Scalar, ids, padding), -1)
        gradient = emit(aten.masked_fill.Scalar, gradient, mask, 0)
    return _rows_looked_up(call, ids, gradient)


def _by_frequency(size: int, gradient: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Divide by how often each id occurs in the batch, as autograd does."""
    flat = ids.reshape(-1)
    ones = gradient.new_ones(()).expand(flat.shape)
    counts = gradient.new_zeros(size).index_add(0, flat, ones)
    return gradient / counts[ids].unsqueeze(-1)
