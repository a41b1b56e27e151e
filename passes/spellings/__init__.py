"""Operators spelled out: plain functions of the operator's arguments that return its outputs.

Each computes what the operator does, by operators that have rules, and draws what it draws. One
that does not hold for some arguments returns NotImplemented, and the operator stays.
"""

from collections.abc import Callable

import torch
from torch import fx

from passes.spellings import attention, bags, distances, lookup, margins, recurrent

_SPELLINGS: dict[torch._ops.OpOverload, Callable] = {
    **recurrent.SPELLINGS,
    **attention.SPELLINGS,
    **bags.SPELLINGS,
    **distances.SPELLINGS,
    **lookup.SPELLINGS,
}
_CORRECTIONS = margins.SPELLINGS  # of operators that are not to be traced as they are


def spelled_out() -> tuple[torch._ops.OpOverload, ...]:
    """All operators with a spelling."""
    return tuple(_SPELLINGS)


def correction(node: fx.Node) -> Callable | None:
    """The function that replaces the operator of a node wherever it is called, or None."""
    return _CORRECTIONS.get(node.target) if node.op == "call_function" else None


def spelling(node: fx.Node) -> Callable | None:
    """The function that spells out the operator of a node, or None."""
    if node.op != "call_function":
        return None
    function = _SPELLINGS.get(node.target)
    if function is bags.embedding_bag and bags.are_even(node):
        return bags.even_bags
    return function
