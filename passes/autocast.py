"""`UnderAutocast`: an operator as the target of a node inside of an autocast block."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from passes.opaque import Opaque

# The innermost block of each device type: `(("cuda", torch.float16),)`, disabled ones left out.
State = tuple[tuple[str, torch.dtype], ...]


@dataclass(frozen=True)
class UnderAutocast:
    """`target(...)` with the operands cast as autocast does it; reads like `target` otherwise.

    Casts are not cached: each use of a parameter has its own.
    """

    target: Any
    state: State

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator; tracing this shows the casts."""
        with ExitStack() as blocks:
            for device, dtype in self.state:
                blocks.enter_context(torch.autocast(device, dtype, cache_enabled=False))
            return self.target(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.target, name)

    @property
    def __name__(self) -> str:
        return f"{self.target.__name__}_under_autocast"


def under_autocast(target: Any, state: State) -> Any:
    """The target to call in place of `target` inside of a block: itself if that is the same.

    Autocast leaves operators alone that it has no kernel for, unless they are composed of others.
    """
    cast = isinstance(target, Opaque) or (
        isinstance(target, OpOverload) and _is_cast(target, state)
    )
    return UnderAutocast(target, state) if state and cast else target


def _is_cast(op: OpOverload, state: State) -> bool:
    if op._schema.is_mutable:
        return False
    keys = [f"Autocast{torch._C._dispatch_key_for_device(device)}" for device, _ in state]
    keys.append("CompositeImplicitAutograd")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(op.name(), key) for key in keys)
