"""Leave a model as it was: random state, buffers, `.grad` and plain attributes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def frozen_state(model: nn.Module, tensors: bool = False) -> Iterator[None]:
    """Undo what running the model does to random generators and attributes.

    With `tensors`, also to buffers (needed where the model runs on real tensors).
    """
    tables = [t for m in model.modules() for t in (vars(m), m._parameters, m._buffers, m._modules)]
    attributes = [(table, dict(table)) for table in tables]
    buffers = [(b, b.detach().clone()) for b in model.buffers()] if tensors else []
    with _forked_randomness(model):
        try:
            yield
        finally:
            for table, before in attributes:
                _restore(table, before)
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


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
