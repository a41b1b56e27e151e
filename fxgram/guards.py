"""What a program was specialised on besides its batch, checked on every call."""

from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn

from fxgram.snapshot import is_plain, plain_values

# What every module has; of it, the hooks matter, and tensors and children are compared one by one.
_INTERNAL = {name for name in vars(nn.Module()) if name != "training"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
        self._remember()

    def holds(self) -> bool:
        """Whether nothing that the program was specialised on has changed."""
        if self._unchanged():
            return True
        if self._read() != self._snapshot:
            return False
        self._remember()  # other objects, equal values
        return True

    def _remember(self) -> None:
        """Note the objects themselves: as long as they are the same, most need no look inside."""
        self._fields = [(vars(m), tuple(vars(m).values())) for m in self._modules]
        tables = [vars(m)[name] for m in self._modules for name in ("_modules", *_HOOKS)]
        self._tables = [(table, tuple(table.values())) for table in tables]
        self._deep = [
            value
            for fields, values in self._fields
            for name, value in zip(fields, values)
            if name not in _INTERNAL and not is_plain(value)
        ]
        self._inside = self._look_inside()
        self._tensors = self._metas()

    def _unchanged(self) -> bool:
        for fields, values in (*self._fields, *self._tables):
            if len(fields) != len(values) or not all(map(is_, fields.values(), values)):
                return False
        return self._metas() == self._tensors and self._look_inside() == self._inside

    def _look_inside(self) -> list[Any]:
        seen: set[int] = set()
        return [
            part for value in (*self._deep, self._objective) for part in plain_values(value, seen)
        ]

    def _metas(self) -> list[Any]:
        found: list[Any] = [torch.get_default_dtype()]
        owners: dict[int, int] = {}
        for module in self._modules:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    tied = owners.setdefault(id(tensor), len(found))
                    found.append(
                        (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad, tied)
                    )
        return found

    def _read(self) -> list[Any]:
        """Everything by value."""
        state, seen = self._metas(), set()
        for module in self._modules:
            fields = vars(module)
            state.extend(map(id, module._modules.values()))
            state.extend(tuple(fields[name]) for name in _HOOKS)
            for name, value in fields.items():
                if name not in _INTERNAL:
                    state.append(name)
                    state.extend(plain_values(value, seen))
        state.extend(plain_values(self._objective, seen))
        return state
