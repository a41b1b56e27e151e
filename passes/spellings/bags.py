"""Bags of embeddings: rows of a table, then a sum, mean or maximum over each bag.

Index legend: k samples (one bag each), t entries of a bag, n entries of all bags, d columns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, fx

aten = torch.ops.aten
_SUM, _MEAN, _MAX = 0, 1, 2


def are_even(node: fx.Node) -> bool:
    """Whether the bags are the rows of a matrix `[k, t]`, which begin at `arange(0, k * t, t)`."""
    offsets = node.args[2]
    return offsets.target == aten.arange.start_step and offsets.args[0] == 0


def even_bags(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, ...]:
    """Bags of the rows of a matrix `ids [k, t]`."""
    if scale_grad_by_freq or include_last_offset:
        return NotImplemented
    ids = ids.reshape(offsets.shape[0], -1)
    rows = F.embedding(ids, table)
    counted = None if padding_idx is None else (ids != padding_idx).unsqueeze(-1)
    if weights is not None:
        rows = rows * weights.reshape(offsets.shape[0], -1, 1)
    if mode == _MAX:
        if counted is None:
            return (rows.max(1).values,)
        best = rows.masked_fill(~counted, float("-inf")).max(1).values
        return (torch.where(counted.any(1), best, 0),)
    total = (rows if counted is None else rows * counted).sum(1)
    if mode == _MEAN:
        total = total / (ids.shape[1] if counted is None else counted.sum(1).clamp_min(1))
    return (total,)


def embedding_bag(
    table: Tensor,
    ids: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, ...]:
    """Bags of a sequence `ids [n]` that begin at `offsets [k]`: a 0/1 matrix `[k, n]` times rows.

    Costs k * n * d, as the rows of all bags are read by each sample.
    """
    if scale_grad_by_freq or include_last_offset or mode == _MAX:
        return NotImplemented
    at = torch.arange(ids.shape[0], device=ids.device)
    ends = torch.cat([offsets[1:], offsets.new_full((1,), ids.shape[0])])
    inside = (at >= offsets[:, None]) & (at < ends[:, None])
    if padding_idx is not None:
        inside = inside & (ids != padding_idx)
    share = inside.to(table.dtype)
    if mode == _MEAN:
        share = share / share.sum(1, keepdim=True).clamp_min(1)
    if weights is not None:
        share = share * weights
    return (share @ F.embedding(ids, table),)


SPELLINGS = {aten.embedding_bag.padding_idx: embedding_bag}
