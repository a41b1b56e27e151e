"""What Python code can read of the objects that it reaches, as values to compare."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
    torch.memory_format, torch.layout, types.BuiltinFunctionType,
)  # fmt: skip
_DEPTH = 6
_LARGE = 200  # containers beyond this count by identity and length
_SKIPPED = {"__init__", "extra_repr", "__repr__", "__setstate__", "__getstate__"}


class Same:
    """An object by identity; holding it keeps its address from being used again."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def is_plain(value: Any) -> bool:
    """Whether a value cannot change inside."""
    return isinstance(value, _PLAIN)


def read_values(
    value: Any, seen: set[int], names: frozenset[str] | None = None, depth: int = 0
) -> Iterator[Any]:
    """Yield what code that mentions `names` (None: any) can read of a value, each object once.

    Plain values by value; tensors by identity and memory; containers, functions (code, closure,
    defaults, globals that they name), modules and other objects by what is inside of them, of
    attributes those that are named. Modules that the caller put into `seen` are left out.
    """
    if isinstance(value, _PLAIN):
        yield value if value == value else "nan"
        return
    if id(value) in seen or depth > _DEPTH or isinstance(value, types.ModuleType):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield Same(value)
        yield value.untyped_storage().data_ptr()
        return
    for inner, mentioned in _parts(value, names):
        yield from read_values(inner, seen, mentioned, depth + 1)


def _parts(value: Any, names: frozenset[str] | None) -> Iterator[tuple[Any, frozenset[str] | None]]:
    """The values inside of one, each with the names that the code reading it mentions."""
    if isinstance(value, dict | list | tuple | set | frozenset):
        yield len(value), None
        if len(value) > _LARGE:
            return
        if isinstance(value, dict):
            yield from ((key, names) for key in value)
        yield from (
            (inner, names) for inner in (value.values() if isinstance(value, dict) else value)
        )
    elif isinstance(value, functools.partial):
        yield from ((inner, names) for inner in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield value.__func__, None
        yield value.__self__, _methods_names(type(value.__self__), names_in(value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from ((inner, names_in(value)) for inner in _reached(value))
    elif isinstance(value, slice):
        yield from ((inner, None) for inner in (value.start, value.stop, value.step))
    elif isinstance(value, type):
        found = vars(value)
        yield from ((found[n], names) for n in names or () if is_plain(found.get(n, found)))
    elif isinstance(value, nn.Module):
        yield value.training, None
        for table in (value._parameters, value._buffers, value._modules):
            yield from ((inner, None) for inner in table.values())
        mentioned = class_names(type(value))
        yield from ((vars(value)[n], mentioned) for n in attributes(value, mentioned))
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):  # NumPy
        yield (value.tobytes() if value.size <= _LARGE else value.size), None
    elif type(value).__module__.split(".")[0] != "fxgram" and hasattr(value, "__dict__"):
        mentioned = None if names is None else _methods_names(type(value), names)
        yield from ((vars(value)[n], mentioned) for n in attributes(value, mentioned))
        if callable(value):
            yield from _parts(types.MethodType(type(value).__call__, value), None)


def _reached(function: types.FunctionType) -> Iterator[Any]:
    """What a function reads besides its arguments."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            yield "unbound"
    yield function.__defaults__
    yield function.__kwdefaults__
    for name in sorted(names_in(function) & function.__globals__.keys()):
        yield function.__globals__[name]


@functools.cache
def _names_of_code(code: types.CodeType) -> frozenset[str]:
    inner = [_names_of_code(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def names_in(function: Any) -> frozenset[str]:
    """The attributes and globals that a function mentions."""
    code = getattr(function, "__code__", None)
    return _names_of_code(code) if code else frozenset()


@functools.cache
def class_names(kind: type) -> frozenset[str] | None:
    """The attributes that the methods of a module class mention; None if they can be any."""
    names: frozenset[str] = frozenset()
    for base in kind.__mro__:
        if base not in (nn.Module, object):
            functions = (f for n, f in vars(base).items() if n not in _SKIPPED)
            for function in functions:
                names |= names_in(getattr(function, "fget", function))
    return None if names & {"getattr", "vars", "__dict__"} else names


def _methods_names(kind: type, names: frozenset[str]) -> frozenset[str] | None:
    """Names, and those that methods of the class among them mention in turn."""
    found, new = names, names
    while new:
        methods = [getattr(kind, n, None) for n in new]
        new = frozenset().union(*(names_in(getattr(m, "fget", m)) for m in methods)) - found
        found |= new
    return None if found & {"getattr", "vars", "__dict__"} else found


def objective_names(objective: Callable | None, depth: int = 0) -> frozenset[str] | None:
    """What an objective, and the functions that it names in turn, mention; None: anything."""
    function = getattr(objective, "__func__", objective)
    if isinstance(function, functools.partial):
        return objective_names(function.func, depth)
    if objective is None or depth > _DEPTH:
        return frozenset()
    if not isinstance(function, types.FunctionType):
        return class_names(type(objective))
    names = names_in(function)
    for _, value in objects_named(function):
        if isinstance(value, types.FunctionType):
            inner = objective_names(value, depth + 1)
            names = names | (inner or frozenset()) | ({"getattr"} if inner is None else frozenset())
    if isinstance(objective, types.MethodType):
        names = _methods_names(type(objective.__self__), names)
    return None if names is None or names & {"getattr", "vars", "__dict__"} else names


def attributes(value: Any, names: frozenset[str] | None) -> list[str]:
    """Attributes of an object that code mentioning `names` can read, internals of modules aside."""
    return [n for n in vars(value) if n not in INTERNAL and (names is None or n in names)]


# What every module has; tensors, children and hooks are compared by whoever needs them.
INTERNAL = frozenset(vars(nn.Module())) - {"training"}


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
