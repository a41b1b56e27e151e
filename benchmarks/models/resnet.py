"""ResNet-18 with instance norm in place of batch norm (He et al. 2015, arXiv 1512.03385)."""

from torch import Tensor, nn


def norm(channels: int) -> nn.Module:
    """Return a norm that keeps samples apart."""
    return nn.InstanceNorm2d(channels, affine=True)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False),
            norm(fan_out),
            nn.ReLU(),
            nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False),
            norm(fan_out),
        )
        if stride == 1 and fan_in == fan_out:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), norm(fan_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu()


def resnet18(classes: int = 1000) -> nn.Module:
    """Return four stages of two blocks: [k,3,h,w] -> [k,c]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    fan_in = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(fan_in, width, stride), Block(width, width, 1)]
        fan_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
