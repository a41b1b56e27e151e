"""Sizes of values that may depend on the number of samples."""

import functools
import math
from collections.abc import Iterable

import sympy
import torch


@functools.cache
def _evaluator(expression: sympy.Expr):
    symbols = sorted(expression.free_symbols, key=str)
    return sympy.lambdify(symbols, expression, "math"), len(symbols)


def evaluated(sizes: Iterable[int | torch.SymInt], samples: int) -> list[int]:
    """Sizes as numbers, for a number of samples."""
    found = []
    for size in sizes:
        if isinstance(size, torch.SymInt):
            evaluate, count = _evaluator(size.node.expr)
            size = evaluate(*[samples] * count)
        found.append(int(size))
    return found


def nbytes(value: torch.Tensor, samples: int) -> int:
    """Bytes of a tensor whose sizes may be symbolic in the number of samples."""
    return value.element_size() * math.prod(evaluated(value.shape, samples))
