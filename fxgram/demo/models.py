"""Three small classifiers of 8x8 images; none couples the samples of a batch.

Index legend: k sample, h w pixels, c class.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn


def cnn() -> nn.Module:
    """Return two convolutions and a linear layer: [k,1,h,w] -> [k,c]."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            head=nn.Linear(32 * 4 * 4, 10),
        )
    )


def mlp() -> nn.Module:
    """Return two linear layers: [k,1,h,w] -> [k,c]."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(64, 64),
            relu=nn.ReLU(),
            head=nn.Linear(64, 10),
        )
    )


class RowAttention(nn.Module):
    """One attention block over the eight rows of an image, each row a token: [k,1,h,w] -> [k,c]."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x.squeeze(1)) + self.position
        normed = self.norm1(rows)
        rows = rows + self.attention(normed, normed, normed, need_weights=False)[0]
        rows = rows + self.narrow(self.widen(self.norm2(rows)).relu())
        return self.head(rows.flatten(1))


MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "mlp": mlp, "attention": RowAttention}
