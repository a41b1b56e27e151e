"""Functions that write into tensors: activations, residual sums, slices, parameters' copies."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case
from .free import Free

D = 3


class InPlaceResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y += x
        z = self.second(F.relu_(y.clone()))
        z += y
        return z.mul_(0.5).tanh_()


def _slices(m, x):
    out = x.new_zeros(len(x), 2, D)
    out[:, 0] = x * m.a
    out[:, 1, 1:] = (x * m.b)[:, 1:]
    out[:, 1, 0] += m.a[0].detach()
    return out.sin()


def _write_parameter(m, x):
    """Write a parameter into every sample: one use, where the slice is written."""
    out = x.clone()
    out[:, 1] = m.w
    return out * x.sin()


def _write_parameter_rows(m, x):
    out = x.new_ones(len(x), 2, D)
    out[:, 0] = m.w
    return out * x.unsqueeze(1)


def _add_parameter(m, x):
    out = x * 2
    out += m.w
    out[:, 0] *= 3
    return out.sin()


def _write_through_view(m, x):
    out = (x @ m.w).sin()
    left = out.view(-1, 2, 2)[:, 0]
    left.add_(x[:, :2])
    return out * out


def _fill_masked(m, x):
    out = x * m.w
    out[x > 0.5] = 0.1
    return out.sin()


def _put_at(m, x):
    out = torch.zeros_like(x)
    out.index_copy_(1, torch.tensor([2, 0]), x[:, :2] * m.w)
    out.index_add_(1, torch.tensor([1, 1, 0]), x * m.v)
    return out.sin()


def _copied_parameter(m, x):
    """Edit a copy of a parameter: parameter-only, one use."""
    w = m.w.clone()
    w[0] += 1
    w[:, 1] *= 2
    return (x @ w).sin()


def _parameter_into_zeros(m, x):
    """Place parameters into a larger constant: parameter-only, one use of each."""
    w = torch.zeros(D, D, dtype=x.dtype)
    w[0, :2] = m.a
    w[1:, 2] = m.b
    return (x @ w + x).sin()


def _symmetric(m, x):
    """Fill both triangles of a matrix with the same entries."""
    w = x.new_zeros(D, D)
    rows, columns = torch.triu_indices(D, D)
    w[rows, columns] = m.w
    return (x @ (w + w.triu(1).t())).sin()


def _activations() -> nn.Module:
    return nn.Sequential(
        nn.Linear(D, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.LeakyReLU(0.1, inplace=True),
        nn.Linear(4, 4), nn.ELU(inplace=True), nn.Linear(4, 4), nn.SiLU(inplace=True),
        nn.Linear(4, 4), nn.Hardswish(inplace=True), nn.Linear(4, 2),
    )  # fmt: skip


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _case(name, function, **shapes):
    return Case(name, lambda: Free(function, **shapes), _vectors)


CASES = (
    Case("in_place_activations", _activations, _vectors),
    Case("in_place_residual", InPlaceResidual, _vectors),
    Case(
        "in_place_dropout",
        lambda: nn.Sequential(nn.Linear(D, 4), nn.Dropout(0.5, inplace=True), nn.Linear(4, 2)),
        _vectors,
        random=True,
    ),
    _case("writes_slices", _slices, a=(D,), b=(D,)),
    _case("writes_scalar_parameter", _write_parameter, w=()),
    _case("writes_vector_parameter", _write_parameter_rows, w=(D,)),
    _case("adds_parameter_in_place", _add_parameter, w=(D,)),
    _case("writes_through_view", _write_through_view, w=(D, 4)),
    _case("fills_by_mask", _fill_masked, w=(D,)),
    _case("copies_and_adds_at_indices", _put_at, w=(2,), v=(D,)),
    _case("edits_copy_of_parameter", _copied_parameter, w=(D, D)),
    _case("parameters_placed_in_zeros", _parameter_into_zeros, a=(2,), b=(2,)),
    _case("symmetric_from_triangle", _symmetric, w=(6,)),
)
