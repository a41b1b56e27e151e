"""Sizes of values that may depend on the number of samples."""

import functools

import sympy
import torch


@functools.cache
def _evaluator(expression: sympy.Expr):
    symbols = sorted(expression.free_symbols, key=str)
    return sympy.lambdify(symbols, expression, "math"), len(symbols)


def nbytes(value: torch.Tensor, samples: int) -> int:
    """Bytes of a tensor whose sizes may be symbolic in the number of samples."""
    total = value.element_size()
    for size in value.shape:
        if isinstance(size, torch.SymInt):
            evaluate, count = _evaluator(size.node.expr)
            size = evaluate(*[samples] * count)
        total *= int(size)
    return total
