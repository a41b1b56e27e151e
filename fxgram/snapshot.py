"""Plain values reachable from Python objects, as a hashable snapshot."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
    torch.memory_format, torch.layout,
)  # fmt: skip
_OPAQUE = (torch.Tensor, nn.Module, types.ModuleType, torch.Generator)
_DEPTH = 6


def is_plain(value: Any) -> bool:
    """Whether a value cannot change inside, or is none that a snapshot looks into."""
    return isinstance(value, (*_PLAIN, *_OPAQUE))


def plain_values(value: Any, seen: set[int], depth: int = 0) -> Iterator[Any]:
    """Yield the plain values in containers, configurations and functions, each object once.

    Tensors and modules are left out: their tensors are looked up by name on each call. Functions
    count by their code, closure, defaults and the plain globals that they name.
    """
    if isinstance(value, _PLAIN):
        yield value
        return
    if isinstance(value, types.BuiltinFunctionType | type):
        yield id(value)
        return
    if isinstance(value, _OPAQUE) or id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        parts: Any = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple | set | frozenset):
        yield len(value)
        parts = value
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, types.FunctionType):
        yield id(value.__code__)
        parts = list(_of_function(value))
    elif isinstance(getattr(value, "__dict__", None), dict):
        parts = [part for pair in vars(value).items() for part in pair]
    else:
        return
    for part in parts:
        yield from plain_values(part, seen, depth + 1)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            yield "unbound"
    yield function.__defaults__
    yield function.__kwdefaults__
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, _PLAIN):
            yield value


def objects_named(objective: Callable | None) -> Iterator[tuple[str, Any]]:
    """Names and values that a function closes over or reads from its module."""
    function = getattr(objective, "__func__", objective)
    if isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
