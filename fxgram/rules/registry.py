"""The table of rules: how one use of a parameter by one operator is written as factors."""

from collections.abc import Callable
from typing import Any

import torch

from fxgram.errors import InvalidArgument
from passes import Factors, Operands

Rule = Callable[[Operands], Factors]
_TABLE: dict[tuple[torch._ops.OpOverload, str], Rule] = {}
_ELEMENTWISE: list[Rule] = []

# Composite spellings of pointwise operators carry no tag.
_POINTWISE_NAMES = {"multiply", "divide", "subtract", "true_divide", "rsub", "copy", "float_power"}


def rule(op: torch._ops.OpOverload, argument: str) -> Callable[[Rule], Rule]:
    """Register the rule for argument `argument` (schema name) of the operator overload `op`.

    The rule gets the call at one site, and returns the factored Jacobian of the losses with
    respect to the argument's value there; it may raise `passes.NotFactored` for calls that it does
    not hold for, which then take the fallback. A rule registered later replaces the earlier one.

    Raises: InvalidArgument for what is no overload or no argument of it.
    """
    if not isinstance(op, torch._ops.OpOverload):
        raise InvalidArgument(
            f"{op} is no operator overload: name one, such as torch.ops.aten.linear.default."
        )
    if argument not in [a.name for a in op._schema.arguments]:
        raise InvalidArgument(f"{op} has no argument `{argument}`; its schema is {op._schema}.")

    def register(function: Rule) -> Rule:
        _TABLE[op, argument] = function
        return function

    return register


def elementwise(function: Rule) -> Rule:
    """Register the rule of every argument of every pointwise operator without one of its own."""
    _ELEMENTWISE[:] = [function]
    return function


def find(op: Any, argument: str) -> Rule | None:
    """The rule for an argument of an operator, or None."""
    if (op, argument) in _TABLE:
        return _TABLE[op, argument]
    pointwise = torch.Tag.pointwise in getattr(op, "tags", ()) or (
        getattr(op, "_opname", None) in _POINTWISE_NAMES
    )
    return _ELEMENTWISE[0] if pointwise and _ELEMENTWISE else None


def registered() -> tuple[tuple[torch._ops.OpOverload, str], ...]:
    """All (operator, argument) pairs that have a rule of their own."""
    return tuple(_TABLE)
