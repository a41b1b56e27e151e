"""SqueezeNet 1.1 without dropout (Iandola et al. 2016, arXiv 1602.07360)."""

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """Squeeze the channels, then expand them by 1x1 and by 3x3 convolutions."""

    def __init__(self, fan_in: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(fan_in, squeeze, 1)
        self.narrow = nn.Conv2d(squeeze, expand, 1)
        self.wide = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x).relu()
        return torch.cat([self.narrow(x), self.wide(x)], 1).relu()


def squeezenet(classes: int = 1000) -> nn.Module:
    """Return eight fire modules, without a linear layer: [k,3,h,w] -> [k,c]."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(64, 16, 64),
        Fire(128, 16, 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(128, 32, 128),
        Fire(256, 32, 128),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(256, 48, 192),
        Fire(384, 48, 192),
        Fire(384, 64, 256),
        Fire(512, 64, 256),
        nn.Conv2d(512, classes, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
