"""Autocast blocks around a step: part of what a program is compiled for, and off while it runs."""

from contextlib import ExitStack

import torch

State = tuple[tuple[str, torch.dtype], ...]  # device types under autocast, and what they cast to
_TYPES = ("cpu", "cuda", "xpu", "mps")


def ambient() -> State:
    """The autocast blocks that are open now."""
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _TYPES
        if torch.is_autocast_enabled(device)
    )


def autocast(state: State, enabled: bool = True) -> ExitStack:
    """Open the blocks of a state, or blocks that switch them off."""
    blocks = ExitStack()
    for device, dtype in state:
        blocks.enter_context(torch.autocast(device, dtype, enabled))
    return blocks
