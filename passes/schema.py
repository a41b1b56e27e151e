"""Arguments of a node by the names of its operator's schema."""

from typing import Any

import torch
from torch import fx


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments, defaults included; empty for what is no ATen-like operator."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    found = {}
    for at, argument in enumerate(node.target._schema.arguments):
        if at < len(node.args):
            found[argument.name] = node.args[at]
        else:
            found[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return found
