"""Elementwise ops and matrix products with the parameter on either side."""

# ruff: noqa: E501 (one row a case)

import torch
import torch.nn.functional as F

from .case import Case
from .free import Free

T, D = 4, 3


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _sequences(draw, k):
    return (draw.normal(k, T, D),)


def _two_vectors(draw, k):
    return draw.normal(k, D), draw.normal(k, D)


def _case(name, function, draw=_vectors, fallback=False, sizes=Case.sizes, **shapes):
    return Case(name, lambda: Free(function, **shapes), draw, fallback=fallback, sizes=sizes)


# x is [k, 3] or [k, 4, 3]; the parameters broadcast against it in each direction
ELEMENTWISE = (
    _case("add_vector", lambda m, x: (x + m.w).sin(), w=(D,)),
    _case("add_scalar", lambda m, x: (x + m.w).sin(), w=()),
    _case("add_with_alpha", lambda m, x: torch.add(x, m.w, alpha=-2).sin(), w=(D,)),
    _case("add_one_entry_vector", lambda m, x: (m.w + x).sin(), w=(1,)),
    _case("add_per_position", lambda m, x: (x + m.w).sin(), _sequences, w=(T, 1)),
    _case("add_leading_ones", lambda m, x: (x + m.w)[0].sin(), _sequences, w=(1, 1, 1, D)),
    _case("add_extra_leading_dims", lambda m, x: (x[:, None, None] * m.w).sin(), w=(2, 4, D)),
    _case("data_broadcasts_to_parameter", lambda m, x: (x[:, :1] + m.w).sin(), w=(5,)),
    _case("subtract_parameter", lambda m, x: (x - m.w).cos(), w=(D,)),
    _case("parameter_minus_data", lambda m, x: (m.w - x).cos(), w=(D,)),
    _case("rsub_with_alpha", lambda m, x: torch.rsub(x, m.w, alpha=3).cos(), w=(D,)),
    _case("multiply_vector", lambda m, x: (x * m.w).tanh(), _sequences, w=(D,)),
    _case("multiply_scalar", lambda m, x: m.w * x, _sequences, w=()),
    _case("multiply_matrix", lambda m, x: (m.w * x).tanh(), _sequences, w=(T, D)),
    _case("multiply_outer", lambda m, x: (m.w * x.unsqueeze(-1)).tanh(), w=(1, 2)),
    _case("divide_by_parameter", lambda m, x: x / m.w.exp(), w=(D,)),
    _case("divide_by_raw_parameter", lambda m, x: x / m.w, w=(D,)),
    _case("parameter_divided_by_data", lambda m, x: m.w / (x.square() + 1), _sequences, w=(T, 1)),
    _case("power_of_data", lambda m, x: (x.square() + 0.1) ** m.w, w=(D,)),
    _case("power_of_parameter", lambda m, x: (m.w.square() + 0.1) ** x, w=(D,)),
    _case("where_parameter_or_data", lambda m, x: torch.where(x > 0, m.w, x), w=(D,)),
    _case("where_two_parameters", lambda m, x: torch.where(x > 0, m.a, m.b.exp()), a=(D,), b=()),
    _case("lerp", lambda m, x, y: torch.lerp(x, y, m.w.sigmoid()), _two_vectors, w=(D,)),
    _case("addcmul", lambda m, x, y: torch.addcmul(m.w, x, y, value=0.5).sin(), _two_vectors, w=(D,)),
    _case("maximum", lambda m, x: torch.maximum(x, m.w), w=(D,)),
    _case("clamp_by_parameters", lambda m, x: torch.clamp(x, m.low - 1, m.high + 1) * x, low=(D,), high=()),
    _case("atan2", lambda m, x: torch.atan2(m.w, x), w=(D,)),
    _case("hypot_by_broadcast", lambda m, x: torch.hypot(x, m.w), _sequences, w=(T, 1)),
    _case("masked_fill", lambda m, x: x.masked_fill(x > 0.5, m.w).sin(), w=()),
    _case("threshold_gate", lambda m, x: (x > 0) * m.w + x * 0.5, w=(D,)),
)  # fmt: skip

PRODUCTS = (
    _case("mm_right", lambda m, x: torch.mm(x, m.w).sin(), w=(D, 2)),
    _case("mm_left", lambda m, x: torch.mm(m.w, x.t()).sin().t(), w=(2, D)),
    _case("matmul_sequence", lambda m, x: (x @ m.w).sin(), _sequences, w=(D, 2)),
    _case("matmul_left", lambda m, x: (m.w @ x).sin(), _sequences, w=(2, T)),
    _case("matmul_vector", lambda m, x: (x @ m.w).sin(), _sequences, w=(D,)),
    _case("matmul_vector_left", lambda m, x: (m.w @ x).sin(), _sequences, w=(T,)),
    _case("matmul_broadcast", lambda m, x: (x.unsqueeze(1) @ m.w).sin(), _sequences, w=(2, D, D)),
    _case("mv", lambda m, x: torch.mv(x, m.w).sin(), w=(D,)),
    _case("bmm_expanded", lambda m, x: torch.bmm(x, m.w.expand(len(x), -1, -1)).sin(), _sequences, w=(D, 2)),
    _case("bmm_expanded_left", lambda m, x: torch.bmm(m.w.expand(len(x), 2, T), x).sin(), _sequences, w=(2, T)),
    _case("bmm_over_positions", lambda m, x: torch.bmm(x.transpose(0, 1), m.w).sin().transpose(0, 1), _sequences, w=(T, D, 2)),
    _case("baddbmm", lambda m, x: torch.baddbmm(m.b, x, m.w.expand(len(x), -1, -1), alpha=2).sin(), _sequences, w=(D, 2), b=(2,)),
    _case("addmm", lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=3).sin(), w=(D, 2), b=(2,)),
    _case("addmm_left", lambda m, x: torch.addmm(m.b, m.w, x.t()).sin().t(), w=(2, D), b=(2, 1)),
    # an empty batch comes out with the shape of the bias
    _case("addmv", lambda m, x: torch.addmv(m.b, x, m.w).sin(), w=(D,), b=(), sizes=(1, 2, 3, 8)),
    _case("dot_by_sum", lambda m, x: (x * m.w).sum(-1), _sequences, w=(D,)),
    _case("tensordot", lambda m, x: torch.tensordot(x, m.w, dims=([1, 2], [1, 0])).sin(), _sequences, w=(D, T, 2)),
    _case("einsum_right", lambda m, x: torch.einsum("ktd,de->kte", x, m.w).sin(), _sequences, w=(D, 2)),
    _case("einsum_left", lambda m, x: torch.einsum("ehd,ktd->khte", m.w, x).sin(), _sequences, w=(2, 2, D)),
    _case("einsum_per_position", lambda m, x: torch.einsum("ktd,tde->kte", x, m.w).sin(), _sequences, w=(T, D, 2)),
    _case("einsum_three_operands", lambda m, x: torch.einsum("ktd,de,te->ke", x, m.a, m.b).sin(), _sequences, a=(D, 2), b=(T, 2)),
    _case("einsum_ellipsis", lambda m, x: torch.einsum("...d,ed->...e", x, m.w).sin(), _sequences, w=(2, D)),
    _case("einsum_diagonal", lambda m, x: torch.einsum("kd,dd->kd", x, m.w).sin(), w=(D, D), fallback=True),
    _case("bilinear", lambda m, x, y: F.bilinear(x, y, m.w, m.b).sin(), _two_vectors, w=(2, D, D), b=(2,)),
    _case("bilinear_without_bias", lambda m, x: F.bilinear(x, x.sin(), m.w).sin(), _sequences, w=(2, D, D)),
    _case("linear_of_parameter", lambda m, x: F.linear(m.w, x).t().sin(), w=(2, D)),
    _case("quadratic_form", lambda m, x: ((x @ m.w) * x).sum(-1).sin(), w=(D, D)),
    _case("outer_product", lambda m, x: (x[:, :, None] * m.w).flatten(1).sin(), w=(1, 2)),
    _case("prototypes_by_distance", lambda m, x: torch.cdist(x, m.w), w=(4, D)),
    _case("prototypes_by_distance_per_position", lambda m, x: torch.cdist(x, m.w), _sequences, w=(2, D)),
    _case("prototypes_by_city_blocks", lambda m, x: torch.cdist(x, m.w, p=1), w=(4, D), fallback=True),
    _case("prototypes_by_squares", lambda m, x: -(x[:, None] - m.w).square().sum(-1), w=(4, D)),
    _case("prototypes_by_cosine", lambda m, x: F.cosine_similarity(x[:, None], m.w, dim=-1), w=(4, D)),
    _case("pairwise_distance", lambda m, x: F.pairwise_distance(x, m.w), w=(D,)),
)  # fmt: skip

CASES = ELEMENTWISE + PRODUCTS
