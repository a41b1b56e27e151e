"""Multi-layer perceptrons, a small convolutional network, and a Transformer."""

from itertools import pairwise

from torch import Tensor, nn


def mlp(*widths: int) -> nn.Module:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cifar_cnn() -> nn.Module:
    """Return four convolutions, two of them grouped, for 32x32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, groups=32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1, groups=64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class TransformerClassifier(nn.Module):
    """Encode a sequence and decode it again, then classify: [k,s,d] -> [k,c]."""

    def __init__(self, width: int = 128, heads: int = 8, layers: int = 3, classes: int = 10):
        super().__init__()
        self.transformer = nn.Transformer(
            width, heads, layers, layers, 4 * width, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.transformer(x, x).mean(1))
