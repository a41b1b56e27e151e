"""Similarities and distances to learned points: arithmetic and a sum over features."""

import torch
from torch import Tensor

aten = torch.ops.aten


def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """`sum x y / (|x| |y|)`; a norm below `eps` counts as `eps`, its gradient as the norm's."""

    def normalized(z: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(z, 2, dim, keepdim=True)
        return z / (norm + (norm.clamp_min(eps) - norm).detach())

    ndim = max(x.ndim, y.ndim)
    x, y = (z.reshape([1] * (ndim - z.ndim) + list(z.shape)) for z in (x, y))
    return (normalized(x) * normalized(y)).sum(dim)


def pairwise_distance(
    x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """`|x - y + eps|` over the last dim."""
    return torch.norm(x - y + eps, p, -1, keepdim)


SPELLINGS = {
    aten.cosine_similarity.default: cosine_similarity,
    aten.pairwise_distance.default: pairwise_distance,
}
