"""What a program was specialised on besides its batch, checked on every call."""

from collections.abc import Callable
from itertools import repeat
from operator import is_
from typing import Any

import torch
from torch import nn

from fxgram.snapshot import attributes, class_names, is_plain, objective_names, read_values

_MISSING = object()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = ("_modules", "_parameters", "_buffers", *_HOOKS)


def _mentioned(modules: tuple[nn.Module, ...], objective: Callable | None) -> frozenset[str] | None:
    """Attributes that the code of the modules and of the objective can read; None: any."""
    found = [class_names(kind) for kind in {type(m) for m in modules}]
    found.append(objective_names(objective))
    return None if None in found else frozenset().union(*(f for f in found if f is not None))


class Guard:
    """A snapshot of the model and the objective; `holds()` says whether a program still fits.

    Covers the module tree, training flags, attributes that some method or the objective mentions
    (plain values, also inside of containers and configurations), hooks, dtype, device, shape and
    requires_grad of parameters and buffers, which parameters are tied, and what the objective
    reaches. The model's tensors are looked up anew on each call and may be replaced.
    """

    def __init__(self, model: nn.Module, objective: Callable | None):
        self._objective = objective
        self._modules = tuple(model.modules())
        self._names = _mentioned(self._modules, objective)
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
        self._fields, self._deep = [], []
        for module in self._modules:
            fields = vars(module)
            names = attributes(module, self._names)
            self._fields.append((fields, len(fields), tuple(names), [fields[n] for n in names]))
            self._deep += [fields[n] for n in names if not is_plain(fields[n])]
        tables = [vars(m)[name] for m in self._modules for name in _TABLES]
        self._tables = [(table, tuple(table.values())) for table in tables]
        self._inside = self._look_inside()
        self._default = torch.get_default_dtype()
        self._tensors = [
            (tensor, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
            for module in self._modules
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        ]

    def _unchanged(self) -> bool:
        for fields, count, names, values in self._fields:
            if len(fields) != count or not all(
                map(is_, map(fields.get, names, repeat(_MISSING)), values)
            ):
                return False
        for table, values in self._tables:
            if len(table) != len(values) or not all(map(is_, table.values(), values)):
                return False
        return self._same_tensors() and self._look_inside() == self._inside

    def _same_tensors(self) -> bool:
        """Whether parameters and buffers are of the same kind as before."""
        for tensor, shape, dtype, device, grad in self._tensors:
            if (
                tensor.dtype is not dtype
                or tensor.requires_grad is not grad
                or tensor.shape != shape
                or tensor.device != device
            ):
                return False
        return torch.get_default_dtype() is self._default

    def _look_inside(self) -> list[Any]:
        seen = set(map(id, self._modules))
        found = [part for v in self._deep for part in read_values(v, seen, self._names)]
        return found + list(read_values(self._objective, seen))

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
        state, seen = self._metas(), set(map(id, self._modules))
        for module in self._modules:
            fields = vars(module)
            state.extend(map(id, module._modules.values()))
            state.extend(tuple(fields[name]) for name in _HOOKS)
            for name in attributes(module, self._names):
                state.append(name)
                state.extend(read_values(fields[name], seen, self._names))
        state.extend(read_values(self._objective, seen))
        return state
