"""What a program allocates at once: its own modules, run on tensors that have sizes alone.

FX's code frees every value after its last use, views share memory, kernels of ours have working
space: the modules themselves know that best. Fake tensors (no memory, no arithmetic) let them tell.
"""

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fxgram.planning.workspace import workspace
from passes import Partition, evaluated


class Ledger(TorchDispatchMode):
    """Counts the bytes of all storages that operators return, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _dense(t)}
        result = func(*args, **(kwargs or {}))
        for tensor in filter(_dense, tree_leaves(result)):
            storage = tensor.untyped_storage()
            if id(storage) not in known and id(storage) not in self._seen:
                self._add(storage)
        self.peak = max(self.peak, self.live + workspace(func, args, result))
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._seen.add(id(storage))
        self.live += storage.nbytes()
        weakref.finalize(storage, self._remove, id(storage), storage.nbytes())

    def _remove(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size

    def restart(self) -> int:
        """Return the peak so far, and begin anew from what is alive."""
        peak, self.peak = self.peak, self.live
        return peak


def _dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


@dataclass(frozen=True)
class Footprint:
    """Bytes that the modules of a program allocate."""

    forward: int  # peak
    kept: int  # between forward and backward
    backward: int  # peak

    @property
    def peak(self) -> int:
        """The most bytes at any time."""
        return max(self.forward, self.backward)


def footprint(
    partition: Partition, inputs: Sequence[Tensor], without_grad: Collection[str]
) -> Footprint:
    """What a step on these inputs, real or fake ones, allocates.

    `without_grad`: placeholders of the parameters whose gradient stays as their `.grad`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_fake(mode, t) for t in inputs]
    with mode, Ledger() as ledger, torch.no_grad():
        losses, gramian, *rest = partition.forward.forward(*fakes)
        start = partition.aux + len(partition.mutated)
        aux, saved = rest[: partition.aux], rest[start:]
        del rest
        forward, kept = ledger.restart(), ledger.live
        _backward(partition, saved, torch.empty_like(losses), without_grad)
        backward = ledger.restart()
        del losses, gramian, aux
    return Footprint(forward, kept, backward)


def _fake(mode: FakeTensorMode, value: Tensor) -> Tensor:
    if not isinstance(value, FakeTensor):
        return mode.from_tensor(value.detach(), static_shapes=True)
    with mode:
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )


def sized(value: Tensor, samples: int) -> Tensor:
    """A fake tensor of the sizes that a symbolic one has for a number of samples."""
    shape = evaluated(value.shape, samples)
    with FakeTensorMode():
        return torch.empty(shape, dtype=value.dtype, device=value.device)


def _backward(
    partition: Partition, saved: list[Any], weights: Tensor, without_grad: Collection[str]
) -> None:
    """Run the parts as autograd does: each frees what it alone had kept."""
    carried: dict[str, Any] = {}
    last = {at: part for part in partition.parts for at in part.saved}
    new: list[Tensor] = []
    for part in partition.parts:
        gradients = part.run(weights, [saved[at] for at in part.saved], carried)
        new += [g for name, g in zip(part.parameters, gradients) if name in without_grad]
        del gradients
        for at in part.saved:
            if last[at] is part:
                saved[at] = None


def ordinary_backward(partition: Partition, inputs: Sequence[Tensor]) -> int:
    """Peak of a plain forward and backward: that of the parts of a plan that recomputes.

    Each operator frees what is not read again, as PyTorch's own nodes of the backward do.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_fake(mode, t) for t in inputs]
    with mode, Ledger() as ledger, torch.no_grad():
        losses, gramian, *rest = partition.forward.forward(*fakes)
        saved = rest[partition.aux + len(partition.mutated) :]
        del rest, gramian
        ledger.restart()
        weights, carried, gradients = torch.empty_like(losses), {}, []
        last = {at: part for part in partition.parts for at in part.saved}
        for part in partition.parts:
            values = [weights, *(saved[at] for at in part.saved)]
            values += [carried.pop(name) for name in part.carried]
            for at in part.saved:
                saved[at] = None if last[at] is part else saved[at]
            places = [n for n in part.module.graph.nodes if n.op == "placeholder"]
            env = dict(zip(places, values))
            del values
            results = fx.Interpreter(part.module).run(initial_env=env, enable_io_processing=False)
            gradients += results[: len(part.parameters)]
            carried.update(zip(part.handed, results[len(part.parameters) :]))
            del results
        return ledger.peak
