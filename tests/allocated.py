"""What torch's profiler sees a block allocate."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], Any]) -> int:
    """Return the most bytes that were allocated at once while `run` ran, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    tree = profiler.profiler.kineto_results.experimental_event_tree()
    found = [e for e in _flat(tree) if e.typed[0] == _EventType.Allocation]
    live = most = 0
    for event in sorted(found, key=lambda e: e.start_time_ns):
        live += event.typed[1].alloc_size  # negative where memory is freed
        most = max(most, live)
    return most


def _flat(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _flat(event.children)


def set_gradients(model: torch.nn.Module, present: bool) -> None:
    """Let all parameters have a `.grad` of zeros, or none."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if present else None
