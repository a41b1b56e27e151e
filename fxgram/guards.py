"""What a program was specialised on besides its batch, checked on every call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fxgram.snapshot import plain_values

# Fields of a module that hold what is looked up by name, or that no forward reads.
_TABLES = {
    "_parameters", "_buffers", "_modules", "training", "_forward_hooks", "_forward_pre_hooks",
    "_backward_hooks", "_backward_pre_hooks",
}  # fmt: skip


class Guard:
    """A snapshot of the model and the objective; `holds()` says whether a program still fits.

    Covers the module tree, training flags, plain values in attributes (in containers and
    configurations as well), hooks, dtype, device, shape and requires_grad of parameters and
    buffers, which parameters are tied, and plain values that the objective reaches. Tensors are
    looked up anew on each call and may be replaced.
    """

    def __init__(self, model: nn.Module, objective: Callable | None):
        self._objective = objective
        self._modules = tuple(model.modules())
        self._snapshot = self._read()

    def holds(self) -> bool:
        """Whether nothing that the program was specialised on has changed."""
        return self._read() == self._snapshot

    def _read(self) -> list[Any]:
        state: list[Any] = [torch.get_default_dtype()]
        owners: dict[int, int] = {}
        seen: set[int] = set()
        for at, module in enumerate(self._modules):
            fields = vars(module)
            state.append(module.training)
            state.extend(map(id, module._modules.values()))
            for parameter in module._parameters.values():
                if parameter is not None:
                    state.append(_meta(parameter))
                    state.append(owners.setdefault(id(parameter), at))
            for buffer in module._buffers.values():
                if buffer is not None:
                    state.append(_meta(buffer))
            state.append((*module._forward_hooks, *module._forward_pre_hooks,
                          *module._backward_hooks, *module._backward_pre_hooks))  # fmt: skip
            for name, value in fields.items():
                if name not in _TABLES:
                    state.extend(plain_values(value, seen))
        state.extend(plain_values(self._objective, seen))
        return state


def _meta(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad
