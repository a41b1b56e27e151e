"""Rules of look-ups: embedding, index_select and indexing read rows of a parameter."""

import math

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
    if call["scale_grad_by_freq"]:
        raise NotFactored
    ids, gradient, padding = call["indices"], call.cotangent(), call["padding_idx"]
    if padding >= 0:
        emit = call.emitter.call
        mask = emit(aten.unsqueeze.default, emit(aten.eq.Scalar, ids, padding), -1)
        gradient = emit(aten.masked_fill.Scalar, gradient, mask, 0)
    return _rows_looked_up(call, ids, gradient)


@rule(aten.index_select.default, "self")
def index_select(call: Operands) -> Factors:
    """`v.index_select(0, ids)`."""
    if call["dim"] != 0:
        raise NotFactored
    return _rows_looked_up(call, call["index"], call.cotangent())


@rule(aten.index.Tensor, "self")
def index_rows(call: Operands) -> Factors:
    """`v[ids]` with one tensor of integers."""
    indices = call["indices"]
    if len(indices) != 1 or indices[0].meta["val"].dtype == torch.bool:
        raise NotFactored
    emit, size = call.emitter.call, call.shape[0]
    ids = emit(aten.remainder.Scalar, indices[0], size)  # -1 is the last row
    return _rows_looked_up(call.viewed(call.shape, indices[0], ids), ids, call.cotangent())
