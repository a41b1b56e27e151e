"""`use`: the marker that gives each use of a parameter a node of its own."""

import torch
from torch import fx


def use(parameter: torch.Tensor) -> torch.Tensor:
    """Return the parameter itself: one node of this kind is one use."""
    return parameter


def is_use(node: fx.Node) -> bool:
    """Whether a node marks one use of a parameter."""
    return node.op == "call_function" and node.target is use
