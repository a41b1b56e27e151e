"""Arguments of a node by the names of its operator's schema."""

from typing import Any

from torch import fx

from passes.targets import overload


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments, defaults included; empty for what is no ATen-like operator."""
    called = overload(node)
    found: dict[str, Any] = {}
    for at, argument in enumerate(called._schema.arguments if called else ()):
        if at < len(node.args):
            found[argument.name] = node.args[at]
        else:
            found[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return found
