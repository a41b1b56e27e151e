"""Normalisation layers, PReLU, and weights that are normalised before they are used."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .case import Case
from .free import Free

D = 4
NONEMPTY = (1, 2, 3, 8)


def _between(norm: nn.Module) -> nn.Module:
    """Put the norm between two convolutions."""
    return nn.Sequential(nn.Conv2d(2, D, 2), norm, nn.Tanh(), nn.Conv2d(D, 2, 2))


def _after_linear(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, D), norm, nn.Linear(D, 2))


def _vectors(draw, k):
    return (draw.normal(k, 3),)


def _sequences(draw, k):
    return (draw.normal(k, 2, 3),)


def _images(draw, k):
    return (draw.normal(k, 2, 4, 4),)


def _off_ones(model: nn.Module) -> nn.Module:
    """Move all parameters and running statistics off the ones and zeros they start with."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    return model


class HandWrittenRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(3, D), nn.Parameter(torch.rand(D) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class ChannelsFirstLayerNorm(nn.Module):
    """Layer norm over the channels of an image, through a permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(2), nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).tanh()


class GlobalGroupNorm(nn.GroupNorm):
    """One group over all channels, in the precision of the weight."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def _weight_norm(m, x):
    return F.linear(x, m.g * m.v / m.v.norm(dim=1, keepdim=True)).sin()


def _standardised(m, x):
    mean = m.w.mean((1, 2, 3), keepdim=True)
    deviation = m.w.std((1, 2, 3), keepdim=True)
    return F.conv2d(x, (m.w - mean) / (deviation + 1e-5), m.b).sin()


def _spectral(m, x):
    return F.linear(x, m.w / torch.linalg.matrix_norm(m.w, 2)).sin()


def _case(name, norm, draw=_vectors, wrap=_after_linear, sizes=Case.sizes):
    return Case(name, lambda: _off_ones(wrap(norm())), draw, sizes=sizes)


CASES = (
    _case("layer_norm", lambda: nn.LayerNorm(D)),
    _case("layer_norm_of_sequence", lambda: nn.LayerNorm(D), _sequences),
    _case("layer_norm_over_two_axes", lambda: nn.LayerNorm([2, D]), _sequences),
    _case("layer_norm_without_bias", lambda: nn.LayerNorm(D, bias=False)),
    _case("layer_norm_without_parameters", lambda: nn.LayerNorm(D, elementwise_affine=False)),
    _case("channels_first_layer_norm", ChannelsFirstLayerNorm, _images, wrap=lambda norm: norm),
    _case("rms_norm", lambda: nn.RMSNorm(D), _sequences),
    _case("hand_written_rms_norm", HandWrittenRMSNorm, wrap=lambda norm: norm),
    _case("group_norm", lambda: nn.GroupNorm(2, D), _images, _between),
    _case("group_norm_of_vectors", lambda: nn.GroupNorm(2, D)),
    _case("group_norm_one_group", lambda: nn.GroupNorm(1, D), _images, _between),
    _case("subclass_of_group_norm", lambda: GlobalGroupNorm(D), _images, _between),
    # instance norm with parameters rejects an empty batch
    _case("instance_norm", lambda: nn.InstanceNorm2d(D, affine=True), _images, _between, NONEMPTY),
    _case("instance_norm_without_parameters", lambda: nn.InstanceNorm2d(D), _images, _between),
    _case("batch_norm_in_eval_mode", lambda: nn.BatchNorm2d(D).eval(), _images, _between),
    _case("batch_norm_of_vectors_in_eval_mode", lambda: nn.BatchNorm1d(D).eval()),
    _case("local_response_norm", lambda: nn.LocalResponseNorm(2), _images, _between),
    _case("prelu_one", lambda: nn.PReLU()),
    _case("prelu_per_channel", lambda: nn.PReLU(D), _images, _between),
    _case("prelu_per_feature", lambda: nn.PReLU(D)),
    Case("weight_norm_by_hand", lambda: Free(_weight_norm, g=(2, 1), v=(2, 3)), _vectors),
    Case("weight_norm", lambda: parametrizations.weight_norm(nn.Linear(3, 2)), _vectors),
    Case("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(3, 2)), _vectors),
    Case("spectral_norm_by_hand", lambda: Free(_spectral, w=(2, 3)), _vectors),
    Case("weight_standardisation", lambda: Free(_standardised, w=(2, 2, 2, 2), b=(2,)), _images),
)  # fmt: skip
