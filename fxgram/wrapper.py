"""Model and objective as one module, whose side effects are operators or errors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fxgram.batch import Batch
from fxgram.errors import CaptureError
from fxgram.watch import Watch


class Wrapper(nn.Module):
    """`forward(*tensors of the batch) -> losses`, for export."""

    def __init__(self, model: nn.Module, objective: Callable | None, batch: Batch):
        super().__init__()
        self.model = model
        self._objective, self._batch = objective, batch
        self.training = model.training

    def forward(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self._batch.arguments(tensors)
        buffers = [(m._buffers, dict(m._buffers)) for m in self.model.modules()]
        attributes = [(m, _tensor_attributes(m)) for m in self.model.modules()]
        with Watch(self.model):
            if self._objective is None:
                losses = self.model(*args, **kwargs)
            else:
                losses = self._objective(self.model, *args, **kwargs)
        for table, before in buffers:
            _write_assigned(table, before)
        for module, before in attributes:
            _refuse_assigned(module, before)
        return losses


def _write_assigned(table: dict[str, Any], before: dict[str, Any]) -> None:
    """Turn `self.buffer = new` into `self.buffer.copy_(new)`, which a graph can hold."""
    for name, old in before.items():
        new = table[name]
        if new is old:
            continue
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            raise CaptureError(
                f"The forward replaces the buffer `{name}` by one of another shape or type; a "
                "compiled step writes buffers in place."
            )
        old.copy_(new)
        table[name] = old


def _tensor_attributes(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _refuse_assigned(module: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = _tensor_attributes(module)
    changed = [name for name, value in after.items() if before.get(name) is not value]
    if changed:
        raise CaptureError(
            f"The forward of {type(module).__name__} assigns tensors to attributes: "
            f"{', '.join(changed)}. A compiled step would not: return them, or register buffers of "
            "the same shape (self.register_buffer) and assign these."
        )
