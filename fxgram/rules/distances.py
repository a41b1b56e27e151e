"""The rule of distances to learned points."""

import torch

from fxgram.rules.products import product_factors
from fxgram.rules.registry import rule
from passes import Factors, NotFactored, Operands

aten = torch.ops.aten


@rule(aten.cdist.default, "x2")
def cdist_points(call: Operands) -> Factors:
    """`y[..., p, m] = |x[..., p, :] - v[m, :]|`: the points' own derivative, summed over p."""
    x, axis = call["x1"], call.cotangent_axis()
    ndim = x.meta["val"].ndim
    if call["p"] != 2 or len(call.shape) != 2:
        raise NotFactored
    alone = axis.dim == ndim - 2  # every row is a sample
    if alone and ndim != 2:
        raise NotFactored

    def local(
        gradient: torch.Tensor, x: torch.Tensor, points: torch.Tensor, distances: torch.Tensor
    ) -> torch.Tensor:
        slope = torch.where(distances > 0, gradient / distances, 0)
        if alone:
            return slope.unsqueeze(-1) * (points - x.unsqueeze(-2))
        return slope.sum(-2).unsqueeze(-1) * points - slope.mT @ x

    distances = call.emitter.call(aten._cdist_forward.default, x, call.value, 2.0, None)
    product = call.trace(local, call.cotangent(), x, call.value, distances)
    leading = "ABCDEFGH"[: product.meta["val"].ndim - 2]
    return product_factors(call, "md", leading + "md", cotangent=product)
