"""Entries picked from a parameter by data: rows of a table, which `embedding` reads.

Index legend: v rows of the table, d columns.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """`table [v, ...]` at `ids`: `[*ids, ...]`."""
    columns = table.shape[1:]
    return F.embedding(ids, table.reshape(table.shape[0], -1)).reshape(*ids.shape, *columns)


def index_select(x: Tensor, dim: int, ids: Tensor) -> Tensor:
    """`x.index_select(1, ids)`."""
    if ids.ndim != 1:
        return NotImplemented
    return _rows(x.movedim(dim, 0), ids).movedim(0, dim)


def take(x: Tensor, ids: Tensor) -> Tensor:
    """`x.flatten()[ids]`."""
    return _rows(x.reshape(-1), ids.remainder(x.numel()))


def gather(x: Tensor, dim: int, ids: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """`y[i, j] = x[ids[i, j], j]`: entries by their place in memory."""
    if ids.ndim != x.ndim or not x.ndim:
        return NotImplemented
    dim, place = dim % x.ndim, ids * math.prod(x.shape[dim % x.ndim + 1 :])
    for d in range(x.ndim):
        if d != dim and x.shape[d] > 1:
            along = torch.arange(x.shape[d], device=ids.device)[: ids.shape[d]]
            behind = [1] * (x.ndim - d - 1)
            place = place + along.reshape(-1, *behind) * math.prod(x.shape[d + 1 :])
    return _rows(x.reshape(-1), place)


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`x[i, :, j]`: the indexed dims become the rows."""
    dims = [d for d, ids in enumerate(indices) if ids is not None]
    found = [indices[d] for d in dims]
    if any(ids.dtype in (torch.bool, torch.uint8) for ids in found):
        return NotImplemented
    place = found[0].remainder(x.shape[dims[0]])
    for d, ids in zip(dims[1:], found[1:], strict=True):
        place = place * x.shape[d] + ids.remainder(x.shape[d])
    front = x.movedim(dims, list(range(len(dims))))
    picked = _rows(front.flatten(0, len(dims) - 1), place)
    if dims == list(range(dims[0], dims[0] + len(dims))):  # neighbours stay where they were
        places = range(place.ndim)
        picked = picked.movedim(list(places), [dims[0] + d for d in places])
    return picked


def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """`[2, d]` repeated (k, 1) gives `[k * 2, d]`."""
    x = x.reshape([1] * (len(repeats) - x.ndim) + list(x.shape))
    apart = [n for size in x.shape for n in (1, size)]
    wide = [n for pair in zip(repeats, x.shape, strict=True) for n in pair]
    sizes = [count * size for count, size in zip(repeats, x.shape, strict=True)]
    return x.reshape(apart).expand(wide).reshape(sizes)


SPELLINGS = {
    aten.index_select.default: index_select,
    aten.take.default: take,
    aten.gather.default: gather,
    aten.index.Tensor: index,
    aten.repeat.default: repeat,
}
