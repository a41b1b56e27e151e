"""Split along the sample axis into a number of parts that does not depend on its size."""

from typing import Any

import sympy
import torch

_CHUNKS = {torch.chunk, torch.Tensor.chunk}
_SPLITS = {torch.split, torch.Tensor.split}


def by_sizes(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
    """A split of a multiple of K with its sizes written out; any other call as it is.

    before   chunk(z[2 * K], 2)                   export asks whether (3 * K - 1) // K is 2
    becomes  split(z, [K, K])
    """
    sizes = None
    if func in _CHUNKS | _SPLITS:
        tensor, parts, dim = _arguments(*args, **kwargs)
        size = tensor.shape[dim] if isinstance(tensor, torch.Tensor) and tensor.ndim else None
        if isinstance(size, torch.SymInt):
            sizes = _into_chunks(size, parts) if func in _CHUNKS else _into_pieces(size, parts)
    return (func, args, kwargs) if sizes is None else (torch.Tensor.split, (tensor, sizes, dim), {})


def _into_chunks(size: torch.SymInt, count: Any) -> list[Any] | None:
    coefficient, _ = size.node.expr.as_coeff_Mul()
    divides = isinstance(count, int) and count > 0 and not coefficient % count
    return [size // count] * count if divides else None


def _into_pieces(size: torch.SymInt, piece: Any) -> list[Any] | None:
    if not isinstance(piece, torch.SymInt):
        return None
    count = sympy.Mul(size.node.expr, sympy.Pow(piece.node.expr, -1))
    return [piece] * int(count) if count.is_Integer else None


def _arguments(
    tensor: Any = None,
    parts: Any = None,
    dim: int = 0,
    *,
    input: Any = None,
    chunks: Any = None,
    split_size: Any = None,
    split_size_or_sections: Any = None,
) -> tuple[Any, Any, int]:
    """The operand, the number or the size of its parts, and the dim, however they are named."""
    given = (parts, chunks, split_size, split_size_or_sections)
    return tensor if input is None else input, next((g for g in given if g is not None), None), dim
