"""Convolutions of one to three dims, forward and transposed, in all their options."""

# ruff: noqa: E501 (one row a case)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, cross_entropy
from .free import Free

NONEMPTY = (1, 2, 3, 8)


class Cifar(nn.Module):
    """Two blocks of convolution and pooling, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.ELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class SqueezeExcite(nn.Module):
    """Gates made of the pooled image scale its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x * self.gate(F.adaptive_avg_pool2d(x, 1)).sigmoid()


class UpAndDown(nn.Module):
    """A small U: down, up, and a skip between."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 3, 2, stride=2), nn.ConvTranspose2d(3, 2, 2, stride=2)
        self.out = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(self.down(x).relu())
        resized = F.interpolate(self.down(x.detach()).detach(), scale_factor=2)[:, :2]
        return self.out(torch.cat([x, up + resized], 1))


class Depthwise(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(4, 8, 3, groups=4), nn.ReLU6(), nn.Conv2d(8, 2, 1, bias=False))


class Sliced(nn.Module):
    """A layer that sees a part of the image: all but the first channel, row or column."""

    def __init__(self, dim: int, layer: nn.Module) -> None:
        super().__init__()
        self.dim, self.layer = dim, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.narrow(self.dim, 1, x.shape[self.dim] - 1))


def _image(*dims: int):
    return lambda draw, k: (draw.normal(k, *dims),)


def _conv(name: str, layer, dims: tuple[int, ...], sizes=Case.sizes) -> Case:
    return Case(name, lambda: nn.Sequential(layer(), nn.Tanh()), _image(*dims), sizes=sizes)


ONE_TO_THREE_DIMS = (
    _conv("conv1d", lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    _conv("conv1d_options", lambda: nn.Conv1d(4, 2, 3, stride=2, padding=2, dilation=2, groups=2), (4, 7)),
    _conv("conv2d", lambda: nn.Conv2d(2, 3, 3), (2, 5, 4)),
    _conv("conv2d_without_bias", lambda: nn.Conv2d(2, 3, 2, bias=False), (2, 3, 4)),
    _conv("conv2d_one_by_one", lambda: nn.Conv2d(2, 3, 1), (2, 3, 3)),
    _conv("conv2d_as_large_as_the_image", lambda: nn.Conv2d(2, 3, 3), (2, 3, 3)),
    _conv("conv2d_stride", lambda: nn.Conv2d(2, 3, 3, stride=2), (2, 6, 7)),
    _conv("conv2d_dilation", lambda: nn.Conv2d(2, 3, 2, dilation=(2, 1), padding=1), (2, 5, 5)),
    _conv("conv2d_groups", lambda: nn.Conv2d(4, 6, 2, groups=2), (4, 4, 4)),
    _conv("conv2d_depthwise", lambda: nn.Conv2d(3, 3, 3, padding=1, groups=3), (3, 4, 4)),
    _conv("conv2d_column_kernel", lambda: nn.Conv2d(2, 3, (3, 1), padding=(1, 0)), (2, 4, 4)),
    _conv("conv2d_all_options", lambda: nn.Conv2d(4, 4, (3, 2), (2, 1), (2, 1), (1, 2), 2), (4, 6, 6)),
    _conv("conv3d", lambda: nn.Conv3d(2, 2, 2, stride=(1, 2, 1)), (2, 3, 4, 3)),
    _conv("conv3d_depthwise", lambda: nn.Conv3d(2, 4, 2, groups=2, padding=1), (2, 2, 3, 2)),
)  # fmt: skip

PADDING = (
    _conv("conv2d_valid", lambda: nn.Conv2d(2, 2, 2, padding="valid"), (2, 3, 3)),
    _conv("conv2d_same", lambda: nn.Conv2d(2, 2, 3, padding="same", dilation=2), (2, 5, 5)),
    _conv("conv1d_same_even_kernel", lambda: nn.Conv1d(2, 2, 4, padding="same"), (2, 5)),
    _conv("conv2d_same_even_kernel", lambda: nn.Conv2d(2, 2, (2, 3), padding="same"), (2, 4, 4)),
    _conv("conv2d_circular", lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    _conv("conv2d_reflect", lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 4, 4), NONEMPTY),
    _conv("conv2d_replicate", lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"), (2, 4, 4), NONEMPTY),
)  # fmt: skip

TRANSPOSED = (
    _conv("conv_transpose1d", lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 4)),
    _conv("conv_transpose2d", lambda: nn.ConvTranspose2d(2, 3, 2), (2, 3, 4)),
    _conv("conv_transpose2d_options", lambda: nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2, dilation=2), (4, 3, 3)),
    _conv("conv_transpose2d_depthwise", lambda: nn.ConvTranspose2d(3, 3, 2, 2, groups=3, bias=False), (3, 2, 2)),
    _conv("conv_transpose3d", lambda: nn.ConvTranspose3d(2, 2, 2, stride=(1, 2, 1)), (2, 2, 2, 2)),
)  # fmt: skip

NETWORKS = (
    Case("cifar_network", Cifar, lambda draw, k: (draw.normal(k, 3, 8, 8), draw.ids(4, k)), cross_entropy),
    Case("channels_sliced_before_a_conv", lambda: Sliced(1, nn.Conv2d(2, 2, 2)), _image(3, 4, 4)),
    Case("columns_sliced_before_a_conv", lambda: Sliced(3, nn.Conv2d(3, 2, 2)), _image(3, 4, 4)),
    Case("squeeze_and_excite", SqueezeExcite, _image(2, 5, 5)),
    Case("up_and_down", UpAndDown, _image(2, 4, 4)),
    Case("depthwise_then_pointwise", Depthwise, _image(4, 4, 4)),
    Case("functional_conv_with_product_as_weight", lambda: Free(lambda m, x: F.conv2d(x, m.a * m.b).sin(), a=(2, 2, 1, 1), b=(1, 1, 3, 2)), _image(2, 4, 4)),
    Case("patches_by_unfold", lambda: Free(lambda m, x: (m.w @ F.unfold(x, 2)).sin(), w=(3, 8)), _image(2, 3, 4)),
    Case("strided_patches", lambda: nn.Sequential(nn.Conv2d(2, 3, 2, stride=2), nn.Flatten(2), nn.Linear(4, 2)), _image(2, 4, 4)),
)  # fmt: skip

CASES = ONE_TO_THREE_DIMS + PADDING + TRANSPOSED + NETWORKS
