"""Test by values that a loss ignores other samples, where no sample axis could be followed."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fxgram.batch import Batch
from fxgram.coupling import ROUNDING
from fxgram.diagnosis import coupled_samples
from fxgram.returned import Objective
from fxgram.state import frozen_state


def check_by_exchange(objective: Objective, batch: Batch, written: Iterable[Tensor] = ()) -> None:
    """Give samples the data of others: the losses of those that kept theirs must not change.

    Any two samples are told apart by a bit of their numbers, so `2 log2 K` forwards do for all.
    Frozen parameters that these have `written` to are restored.

    Raises: CoupledSamples.
    """
    with torch.inference_mode(False):
        written = tuple(written)
        plain = _losses(objective, batch, batch.tensors, written)
        within = ROUNDING[plain.dtype] * plain.abs().max().nan_to_num(1.0)
        for numbers in _exchanges(batch.size):
            exchanged = tuple(
                t if d is None else t.index_select(d, numbers.to(t.device))
                for t, d in zip(batch.tensors, batch.dims)
            )
            kept = numbers == torch.arange(batch.size)
            difference = (_losses(objective, batch, exchanged, written) - plain)[kept].abs()
            if bool((difference > within).any()):
                raise coupled_samples((), "operators that a graph does not tell apart by sample")


def _losses(
    objective: Objective, batch: Batch, tensors: tuple[Tensor, ...], written: tuple[Tensor, ...]
) -> Tensor:
    """Losses of the eager model, samples first."""
    with frozen_state(objective.model, tensors=True, written=written), torch.enable_grad():
        found = objective(batch, tuple(t.clone() for t in tensors)).losses.detach()
    return found.movedim(found.shape.index(batch.size), 0)


def _exchanges(count: int) -> Iterator[Tensor]:
    """Whose data each sample gets: `[0, 0, 2, 2]` and `[1, 1, 3, 3]`, then `[0, 1, 0, 1]`, ..."""
    numbers = torch.arange(count)
    bit = 1
    while bit < count:
        without = numbers & ~bit
        yield without
        yield torch.where((numbers | bit) < count, numbers | bit, bit)
        bit *= 2
