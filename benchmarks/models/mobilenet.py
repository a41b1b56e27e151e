"""MobileNet-v2 and -v3-small with group norm in place of batch norm, without dropout.

Sources: Sandler et al. 2018, arXiv 1801.04381; Howard et al. 2019, arXiv 1905.02244.
"""

from torch import Tensor, nn


def convolve(
    fan_in: int, fan_out: int, kernel: int, stride: int, act: nn.Module | None, groups: int = 1
) -> nn.Module:
    """Return a convolution, its norm and, if any, its activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(fan_in, fan_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.GroupNorm(8, fan_out),
    ]
    return nn.Sequential(*layers, *([act] if act else []))


class SqueezeExcite(nn.Module):
    """Scale each channel by a number computed from all of them."""

    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeeze, 1),
            nn.ReLU(),
            nn.Conv2d(squeeze, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class InvertedResidual(nn.Module):
    """Widen by a 1x1, filter by a depthwise and narrow by a 1x1 convolution, with a shortcut."""

    def __init__(
        self,
        fan_in: int,
        width: int,
        fan_out: int,
        kernel: int,
        stride: int,
        act: type[nn.Module],
        squeeze: int = 0,
    ) -> None:
        super().__init__()
        layers = [convolve(fan_in, width, 1, 1, act())] if width != fan_in else []
        layers.append(convolve(width, width, kernel, stride, act(), groups=width))
        if squeeze:
            layers.append(SqueezeExcite(width, squeeze))
        layers.append(convolve(width, fan_out, 1, 1, None))
        self.layers = nn.Sequential(*layers)
        self.shortcut = stride == 1 and fan_in == fan_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.shortcut else self.layers(x)


def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Return the network of width 1.0: [k,3,h,w] -> [k,c]."""
    layers = [convolve(3, 32, 3, 2, nn.ReLU6())]
    fan_in = 32
    for expansion, fan_out, repeats, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for stride in [first_stride] + [1] * (repeats - 1):
            width = expansion * fan_in
            layers.append(InvertedResidual(fan_in, width, fan_out, 3, stride, nn.ReLU6))
            fan_in = fan_out
    layers.append(convolve(320, 1280, 1, 1, nn.ReLU6()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes))


def mobilenet_v3_small(classes: int = 1000) -> nn.Module:
    """Return the small network of width 1.0: [k,3,h,w] -> [k,c]."""
    relu, swish = nn.ReLU, nn.Hardswish
    layers = [convolve(3, 16, 3, 2, swish())]
    for fan_in, width, fan_out, kernel, stride, act, squeeze in (
        (16, 16, 16, 3, 2, relu, 8),
        (16, 72, 24, 3, 2, relu, 0),
        (24, 88, 24, 3, 1, relu, 0),
        (24, 96, 40, 5, 2, swish, 24),
        (40, 240, 40, 5, 1, swish, 64),
        (40, 240, 40, 5, 1, swish, 64),
        (40, 120, 48, 5, 1, swish, 32),
        (48, 144, 48, 5, 1, swish, 40),
        (48, 288, 96, 5, 2, swish, 72),
        (96, 576, 96, 5, 1, swish, 144),
        (96, 576, 96, 5, 1, swish, 144),
    ):
        layers.append(InvertedResidual(fan_in, width, fan_out, kernel, stride, act, squeeze))
    layers.append(convolve(96, 576, 1, 1, swish()))
    head = [nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, classes)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)
