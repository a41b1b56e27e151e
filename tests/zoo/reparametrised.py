"""Weights that are computed: from other parameters, from buffers, or from the data."""

# ruff: noqa: E501 (one row a case)

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from .case import Case
from .free import Free

D = 3


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).mT


class Scaled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(2, 1))

    def forward(self, w: Tensor) -> Tensor:
        return w * self.scale.exp()


class LoRA(nn.Module):
    """A frozen layer with a learned product of low rank beside it, or added to its weight."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.base, self.merged = nn.Linear(D, 2), merged
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(1, D)), nn.Parameter(torch.randn(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:
            return F.linear(x, self.base.weight + 2 * self.b @ self.a, self.base.bias).sin()
        return (self.base(x) + 2 * F.linear(F.linear(x, self.a), self.b)).sin()


class StandardisedConv(nn.Conv1d):
    """Weight standardisation: every filter with mean 0 and deviation 1."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2), keepdim=True)
        deviation = self.weight.std((1, 2), keepdim=True)
        return F.conv1d(x, (self.weight - mean) / (deviation + 1e-5), self.bias)


class Hypernetwork(nn.Module):
    """The weights of the layer are an output: data, not parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.shared = nn.Linear(2, 2 * D), nn.Linear(2, 2)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        w = self.weights(context).tanh().unflatten(1, (2, D))
        return self.shared((w @ x.unsqueeze(-1)).squeeze(-1)).sin()


class FakeQuantised(nn.Module):
    """Rounded weights in the forward, straight through in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(D, 4), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        w = self.linear.weight
        levels = w / self.step
        rounded = (levels + (levels.round() - levels).detach()) * self.step
        return F.linear(x, rounded, self.linear.bias).sin()


class DropConnect(nn.Module):
    """Each sample has a mask of the weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, D))

    def forward(self, x: Tensor) -> Tensor:
        masks = F.dropout(torch.ones(len(x), 2, D, dtype=x.dtype), 0.4)
        return ((self.w * masks) @ x.unsqueeze(-1)).squeeze(-1).sin()


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _layer(wrap):
    return lambda: nn.Sequential(wrap(nn.Linear(D, 2)), nn.Tanh())


def _parametrized(module):
    def wrap(layer):
        parametrize.register_parametrization(layer, "weight", module())
        return layer

    return wrap


def _square(wrap):
    return lambda: nn.Sequential(wrap(nn.Linear(D, D)), nn.Tanh())


def _free(name, function, **shapes):
    return Case(name, lambda: Free(function, **shapes), _vectors)


CASES = (
    Case("weight_norm_of_a_layer", _layer(parametrizations.weight_norm), _vectors),
    Case("weight_norm_over_all", _layer(lambda m: parametrizations.weight_norm(m, dim=None)), _vectors),
    Case("spectral_norm", _layer(parametrizations.spectral_norm), _vectors),
    Case("spectral_norm_in_eval_mode", lambda: _layer(parametrizations.spectral_norm)().eval(), _vectors),
    Case("orthogonal_by_cayley", _square(lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley")), _vectors),
    Case("orthogonal_by_exponential", _square(lambda m: parametrizations.orthogonal(m, orthogonal_map="matrix_exp")), _vectors),
    Case("orthogonal_by_householder", _square(lambda m: parametrizations.orthogonal(m, orthogonal_map="householder")), _vectors),
    Case("symmetric_weight", _square(_parametrized(Symmetric)), _vectors),
    Case("scaled_weight", _layer(_parametrized(Scaled)), _vectors),
    Case("lora", lambda: LoRA(False), _vectors),
    Case("lora_merged", lambda: LoRA(True), _vectors),
    Case("standardised_conv1d", lambda: StandardisedConv(1, 2, 3), lambda draw, k: (draw.normal(k, 1, 5),)),
    Case("hypernetwork", Hypernetwork, lambda draw, k: (draw.normal(k, D), draw.normal(k, 2))),
    Case("fake_quantised", FakeQuantised, _vectors),
    Case("drop_connect", DropConnect, _vectors, random=True),
    _free("first_entries_of_weight", lambda m, x: F.linear(x[:, :2], m.w[:2, :2], m.b[:2]).sin(), w=(4, D), b=(4,)),
    _free("weights_side_by_side", lambda m, x: F.linear(x, torch.cat([m.a, m.b], 1)).sin(), a=(2, 1), b=(2, 2)),
    _free("triangle_times_transpose", lambda m, x: (x @ (m.w.tril() @ m.w.tril().mT)).sin(), w=(D, D)),
    _free("weight_times_itself", lambda m, x: (x @ (m.w @ m.w)).sin(), w=(D, D)),
    _free("scaled_difference", lambda m, x: (x @ (m.a.t() - 0.5 * m.b / 3)).sin(), a=(2, D), b=(D, 2)),
    _free("add_with_alpha_of_product", lambda m, x: (x @ torch.add(m.a, (m.b @ m.c).permute(1, 0), alpha=-2)).sin(), a=(D, 2), b=(2, 2), c=(2, D)),
    _free("low_rank_of_three", lambda m, x: (x @ (m.a @ m.b @ m.c)).sin(), a=(D, 2), b=(2, 2), c=(2, D)),
)  # fmt: skip
