"""Values that a forward computes from numbers alone: known while it is captured."""

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

_CREATORS = {torch.full, torch.zeros, torch.ones, torch.arange, torch.eye, torch.linspace}
_READERS = {torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__float__,
            torch.Tensor.__index__, torch.Tensor.tolist}  # fmt: skip
UNKNOWN = object()


class Constants:
    """Follows tensors made by `torch.full(...)` and the like through plain functions of them.

    A mask is made in the forward and then asked whether it is causal: its values depend on sizes
    alone, so `bool((mask == other).all())` can be answered although the tensors are fake.
    """

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def read(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The number that `func` reads from a known tensor, else UNKNOWN."""
        if func in _READERS and args and args[0] in self._known:
            with _disable_current_modes():
                return func(self._known[args[0]], *args[1:], **kwargs)
        return UNKNOWN

    def follow(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Learn the value of `result = func(*args, **kwargs)` where it follows from known ones."""
        name = getattr(func, "__name__", "")
        leaves = tree_leaves((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if (
            (name.endswith("_") and not name.endswith("__"))
            or "out" in kwargs
            or name == "__setitem__"
        ):
            for leaf in given:
                self._known.pop(leaf, None)
            return
        if not isinstance(result, torch.Tensor) or any(isinstance(x, torch.SymInt) for x in leaves):
            return
        known = all(leaf in self._known for leaf in given) if given else func in _CREATORS
        if known:
            with _disable_current_modes():
                args, kwargs = tree_map(
                    lambda x: self._known[x] if isinstance(x, torch.Tensor) else x, (args, kwargs)
                )
                self._known[result] = func(*args, **kwargs)
