"""What a program was specialised on besides its batch, checked on every call."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


class Guard:
    """A snapshot of the model and the objective; `holds()` says whether a program still fits.

    Covers the module tree, training flags, plain attributes, hooks, dtype, device, shape and
    requires_grad of parameters and buffers, which parameters are tied, and plain values that the
    objective closes over. Tensors are looked up anew on each call and may be replaced.
    """

    def __init__(self, model: nn.Module, objective: Callable | None):
        self._model, self._objective = model, objective
        self._modules = tuple(model.modules())
        self._snapshot = self._read()

    def holds(self) -> bool:
        """Whether nothing that the program was specialised on has changed."""
        return self._read() == self._snapshot

    def _read(self) -> list[Any]:
        state: list[Any] = [torch.get_default_dtype()]
        owners: dict[int, int] = {}
        for at, module in enumerate(self._modules):
            fields = module.__dict__
            state.append(fields["training"])
            state.extend(map(id, fields["_modules"].values()))
            for parameter in fields["_parameters"].values():
                if parameter is not None:
                    state.append(_meta(parameter))
                    state.append(owners.setdefault(id(parameter), at))
            for buffer in fields["_buffers"].values():
                if buffer is not None:
                    state.append(_meta(buffer))
            state.append((*fields["_forward_hooks"], *fields["_forward_pre_hooks"],
                          *fields["_backward_hooks"], *fields["_backward_pre_hooks"]))  # fmt: skip
            for name, value in fields.items():
                if isinstance(value, _PLAIN):
                    state.append((name, value))
                elif isinstance(value, tuple | list) and all(isinstance(v, _PLAIN) for v in value):
                    state.append((name, tuple(value)))
        state.extend(_plain_values(self._objective))
        return state


def _meta(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _plain_values(objective: Callable | None) -> Iterator[Any]:
    """Plain values among the closure, the defaults and the named globals of a function."""
    function = getattr(objective, "__func__", objective)
    if not isinstance(function, types.FunctionType):
        return
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield value if isinstance(value, _PLAIN) else id(value)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield value if isinstance(value, _PLAIN) else id(value)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, _PLAIN):
            yield name, value
