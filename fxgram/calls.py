"""Record what a captured graph has no operator for: custom autograd functions and tensor hooks.

Each is one marker operator with a key, which `canonicalize` exchanges for the callable itself.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from fxgram.errors import CaptureError
from passes import Hooked, Opaque

_log = logging.getLogger("fxgram")
_library = torch.library.Library("fxgram", "DEF")
_library.define("call(Tensor[] tensors, SymInt[] sizes, int key) -> Tensor[]")
_library.define("hook(Tensor tensor, int key) -> Tensor")
_capturing = threading.local()
# Functions of these modules are how PyTorch records operators and hooks of modules.
_MACHINERY = ("torch._", "torch.nn.modules._functions")


@torch.library.register_fake("fxgram::call", lib=_library)
def _call(tensors: list[Tensor], sizes: list[int], key: int) -> list[Tensor]:
    return _capturing.calls.run(key, tensors, sizes)


@torch.library.register_fake("fxgram::hook", lib=_library)
def _hook(tensor: Tensor, key: int) -> Tensor:
    return torch.empty_like(tensor)


class Calls:
    """Within the block, calls of custom autograd functions become nodes of the captured graph.

    Functions of PyTorch's own machinery run as they are, and checkpointed ones are called: they
    save memory in eager mode and compute the same. Other threads notice nothing.
    """

    def __init__(self) -> None:
        self.targets: list[Callable] = []  # by key
        self._inside = False

    def __enter__(self) -> "Calls":
        self.targets.clear()
        _capturing.calls = self
        self._block = _intercepting(self._intercept)
        self._block.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)
        del _capturing.calls

    def hook(self, tensor: Tensor, hook: Callable) -> None:
        """Record that `hook` sees the gradient of a tensor that the forward computes."""
        if tensor.is_leaf:
            raise CaptureError(
                "The forward calls `register_hook` on a parameter, or on another leaf, which adds "
                "one more hook on each call: register it once, outside of the forward."
            )
        self.targets.append(Hooked(_Checked(hook)))
        torch.ops.fxgram.hook(tensor, len(self.targets) - 1)

    def run(self, key: int, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Run a recorded function on fake tensors; its results are tensors of their own."""
        target, observer = self.targets[key], _Observer(tensors)
        self._inside = True
        try:
            with torch.no_grad(), observer:
                results = target([t.detach() for t in tensors], sizes)
        finally:
            self._inside = False
        target.draws, target.writes = observer.draws, observer.writes
        return [torch.empty_like(t) for t in results]

    def _intercept(self, original: Callable, cls: type, args: tuple) -> Any:
        if self._inside or cls.__module__.startswith(_MACHINERY):
            return original(cls, *args)
        if cls is CheckpointFunction:
            return _checkpointed(*args)
        return self._record(cls.__qualname__, lambda *args: original(cls, *args), args)

    def _record(self, name: str, function: Callable, args: tuple) -> Any:
        call = Opaque(name, function, args)
        self.targets.append(call)
        results = torch.ops.fxgram.call(call.tensors, call.sizes, len(self.targets) - 1)
        if call.writes:
            raise CaptureError(
                f"The custom autograd.Function `{name}` changes one of its arguments in place, "
                "which a captured graph cannot follow: let it return a new tensor."
            )
        return call.result(results)


def without_checkpoints() -> AbstractContextManager:
    """Call what reentrant checkpoints would run later: they refuse to work with autograd.grad."""

    def intercept(original: Callable, cls: type, args: tuple) -> Any:
        return _checkpointed(*args) if cls is CheckpointFunction else original(cls, *args)

    return _intercepting(intercept)


@contextmanager
def _intercepting(intercept: Callable) -> Iterator[None]:
    """Let `intercept(original, cls, args)` answer `cls.apply(*args)` in this thread."""
    plain, owner = torch.autograd.Function.__dict__["apply"], threading.get_ident()
    original = plain.__func__

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != owner or kwargs:
            return original(cls, *args, **kwargs)
        return intercept(original, cls, args)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[method-assign]


def _checkpointed(run: Callable, preserve_rng_state: bool, *args: Any) -> Any:
    """Compute what a reentrant checkpoint does: no gradient unless an argument has one."""
    keep = any(isinstance(a, Tensor) and a.requires_grad for a in args)
    with torch.set_grad_enabled(keep and torch.is_grad_enabled()):
        return run(*args)


class _Observer(TorchDispatchMode):
    """Note whether operators draw random numbers, and whether they write to given tensors."""

    def __init__(self, tensors: list[Tensor]):
        super().__init__()
        self._storages = {t.untyped_storage()._cdata for t in tensors}
        self.draws = self.writes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, Tensor):
                self.writes |= value.untyped_storage()._cdata in self._storages
        return func(*args, **(kwargs or {}))


class _Checked:
    """A hook that says so if it does nothing but look: a compiled step does not call it again."""

    def __init__(self, hook: Callable):
        self._hook, self._said = hook, False

    def __call__(self, grad: Tensor) -> Tensor | None:
        changed = self._hook(grad)
        if changed is None and not grad._version and not self._said:
            self._said = True
            _log.warning(
                "the tensor hook %s returns nothing: it ran while the step was compiled, and is "
                "not called on each step.",
                getattr(self._hook, "__qualname__", repr(self._hook)),
            )
        return changed
