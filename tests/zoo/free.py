"""A module made of free parameters and one function: most small cases need no more."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Free(nn.Module):
    """Parameters of the given shapes, and `function(module, *inputs)` as the forward."""

    def __init__(self, function: Callable[..., Any], /, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(0.7 * torch.randn(shape)))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)
