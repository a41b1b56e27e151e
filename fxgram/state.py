"""Leave a model as it was: random state, buffers, `.grad` and plain attributes."""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fxgram.errors import CaptureError


@contextmanager
def frozen_state(
    model: nn.Module, tensors: bool = False, written: Iterable[torch.Tensor] = ()
) -> Iterator[None]:
    """Undo what running the model does to random generators and attributes.

    With `tensors`, also to buffers (needed where the model runs on real tensors) and to frozen
    parameters that it is known to have `written` to: copies of all of them might take much memory.
    """
    tables = [t for m in model.modules() for t in (vars(m), m._parameters, m._buffers, m._modules)]
    attributes = [(table, dict(table)) for table in tables]
    kept = [*model.buffers(), *written] if tensors else []
    values = [(t, t.detach().clone()) for t in kept]
    with _forked_randomness(model):
        try:
            yield
        finally:
            for table, before in attributes:
                _restore(table, before)
            with torch.no_grad():
                for tensor, value in values:
                    # Unchanged ones are left alone: a graph of the caller may have saved them.
                    # (Versions don't tell: batch norm changes its statistics behind their back.)
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)


def plain_attributes(model: nn.Module) -> dict[str, Any]:
    """Numbers, strings and the like among the attributes of the modules, by full name."""
    return {
        f"{name}.{attribute}".lstrip("."): value
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, bool | int | float | complex | str | None)
    }


def set_attributes(model: nn.Module, values: dict[str, Any]) -> None:
    """Set attributes by full name."""
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(path), attribute, value)


def _restore(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [n for n in now if n not in before]:
        del now[name]
    for name, value in before.items():
        if now.get(name) is not value:
            now[name] = value


def _forked_randomness(model: nn.Module):
    devices = {p.device for p in model.parameters()} | {b.device for b in model.buffers()}
    indices = [d.index for d in devices if d.type == "cuda" and d.index is not None]
    return torch.random.fork_rng(devices=indices)


@contextmanager
def python_randomness_unused() -> Iterator[None]:
    """Raise if Python's or NumPy's random generator advances: its draws would be frozen."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
        used = random.getstate() != python_state or (
            numpy is not None
            and any((a != b) if not hasattr(a, "any") else (a != b).any()
                    for a, b in zip(numpy.random.get_state(), numpy_state))
        )  # fmt: skip
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
    if used:
        raise CaptureError(
            "The forward draws from Python's or NumPy's random generator. A compiled program would "
            "repeat the same draw for ever: draw with torch instead, e.g. torch.rand(())."
        )
