"""What a contender returns, and how those that compute norms alone clip."""

from collections.abc import Callable

from torch import Tensor

Answer = Tensor | None
Run = Callable[[Tensor, Tensor, Tensor], tuple[Answer, Tensor | None]]

MAX_NORM = 1.0  # of a loss's gradient, after clipping


def clipped(squared_norms: Tensor) -> Tensor:
    """Return the factors that bring each gradient to `MAX_NORM` at most, [k]."""
    return (MAX_NORM / (squared_norms.sqrt() + 1e-6)).clamp(max=1.0)  # Opacus' own formula
