"""Model and objective as one module, whose side effects are operators or errors."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fxgram.autocast import autocast
from fxgram.batch import Batch
from fxgram.cumulative import cumulative_statistics
from fxgram.errors import CaptureError
from fxgram.returned import Objective
from fxgram.state import plain_attributes
from fxgram.watch import Watch


class Wrapper(nn.Module):
    """`forward(*tensors of the batch) -> (losses, *computed leaves of aux)`, for a tracer."""

    def __init__(self, objective: Objective, batch: Batch):
        super().__init__()
        self.model = objective.model
        self.training = objective.model.training
        self.watch = Watch(objective.model, objective.function)
        self._objective, self._batch = objective, batch

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        tables = [(m._buffers, dict(m._buffers)) for m in self.model.modules()]
        attributes = [(m, _tensors(vars(m))) for m in self.model.modules()]
        parameters = [(m, _tensors(m._parameters)) for m in self.model.modules()]
        _equate(t.shape[d] for t, d in zip(tensors, self._batch.dims) if d is not None)
        with autocast(self._batch.autocast), cumulative_statistics(self.model), self.watch:
            returned = self._objective(self._batch, tensors)
        self.watch.aux = returned.aux
        self.watch.plain_after = plain_attributes(self.model)
        for table, before in tables:
            _write_assigned(table, before)
        for module, before in attributes:
            _refuse_assigned(module, vars(module), before)
        for module, before in parameters:
            _refuse_assigned(module, module._parameters, before)
        return returned.losses, *returned.values


def _equate(sizes: Iterable[Any]) -> None:
    """Let a tracer know that sizes are one number: it takes each for a symbol of its own."""
    for one, other in pairwise(sizes):
        bool(one == other)


def _write_assigned(table: dict[str, Any], before: dict[str, Any]) -> None:
    """Turn `self.buffer = new` into `self.buffer.copy_(new)`, which a graph can hold."""
    for name, old in before.items():
        new = table.get(name)
        if new is old:
            continue
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            raise CaptureError(
                f"The forward replaces the buffer `{name}` by one of another shape or type; a "
                "compiled step writes buffers in place."
            )
        old.copy_(new)
        table[name] = old


def _tensors(table: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in table.items() if isinstance(value, torch.Tensor)}


def _computed_by_hooks(module: nn.Module) -> set[str]:
    """Attributes that a hook of `torch.nn.utils` computes anew before each forward."""
    hooks = module._forward_pre_hooks.values()
    names = {hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm)}
    return names | {hook._tensor_name for hook in hooks if isinstance(hook, BasePruningMethod)}


def _refuse_assigned(module: nn.Module, table: dict[str, Any], before: dict[str, Any]) -> None:
    new = {name for name, value in _tensors(table).items() if before.get(name) is not value}
    changed = sorted(new - _computed_by_hooks(module))
    if changed:
        raise CaptureError(
            f"The forward of {type(module).__name__} assigns tensors to attributes: "
            f"{', '.join(changed)}. A compiled step would not: return them, or register buffers of "
            "the same shape (self.register_buffer) and assign these; make parameters in __init__."
        )
