"""The modules of a program under one plan, run on a batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import passes
from fxgram.backward import attach
from fxgram.captured import Captured
from fxgram.errors import InvalidBatch
from passes import GradientPart, PassRecord


class Planned:
    """The modules of a program under one plan."""

    def __init__(
        self,
        captured: Captured,
        model: nn.Module,
        partition: passes.Partition,
        records: list[PassRecord],
    ):
        self.partition, self.records = partition, records
        self._inputs = captured.inputs
        getters = [_getter(model, captured, name) for name in partition.inputs]
        self._fixed = [g for g in getters if g is not None]
        self._mutated = [_getter(model, captured, n) for n in partition.mutated]
        self._mutated_batch = _positions(captured.inputs, partition.mutated)
        self._parameters = [
            [_getter(model, captured, name) for name in part.parameters] for part in partition.parts
        ]

    def __call__(
        self, tensors: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
        """Run the step on the tensors of a batch: losses `[K]`, Gramian `[K, K]`, values of aux."""
        keep = torch.is_grad_enabled()
        module = self.partition.forward if keep else self.partition.evaluate
        with torch.no_grad():
            losses, gramian, *rest = module.forward(*self.inputs(tensors))
            aux, written, saved = self._split(rest)
            targets = self._targets(tensors)
            if targets:
                _refuse_aliases(tensors, [at for at in self._mutated_batch if at >= 0])
                saved, aux = _apart(saved, targets), _apart(aux, targets)
            if keep:
                with torch.enable_grad():
                    losses = attach(losses, self._parts(saved))
            for target, value in zip(targets, written):
                target.copy_(value)
        return losses, gramian, tuple(aux)

    def _split(self, rest: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Values of aux, new values of what the forward writes, and what the backward needs."""
        aux = self.partition.aux
        written = aux + len(self._mutated)
        return rest[:aux], rest[aux:written], rest[written:]

    def _targets(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Buffers and batch tensors that the step writes to."""
        return [
            tensors[at] if get is None else get()
            for get, at in zip(self._mutated, self._mutated_batch)
        ]

    def inputs(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The arguments of the modules for the tensors of a batch."""
        return [get() for get in self._fixed] + list(tensors)

    def without_grad(self) -> set[str]:
        """Placeholders of the parameters that have no `.grad` yet."""
        return {
            name
            for part, parameters in zip(self.partition.parts, self._parameters)
            for name, get in zip(part.parameters, parameters)
            if get().grad is None
        }

    def gradients(self, tensors: tuple[torch.Tensor, ...], weights: torch.Tensor) -> tuple:
        """Losses and `{parameter: weighted gradient}` without touching `.grad`; writes buffers."""
        with torch.no_grad():
            losses, _, *rest = self.partition.forward.forward(*self.inputs(tensors))
            found: dict[str, torch.Tensor] = {}
            carried: dict[str, Any] = {}
            for part, _, saved in self._parts(self._split(rest)[2]):
                for name, grad in zip(part.parameters, part.run(weights, saved, carried)):
                    found[self._inputs[name].name] = grad
            for target, value in zip(self._targets(tensors), self._split(rest)[1]):
                target.copy_(value)
        return losses, found

    def _parts(self, saved: list[Any]) -> tuple[tuple[GradientPart, list, list], ...]:
        return tuple(
            (part, [get() for get in parameters], [saved[at] for at in part.saved])
            for part, parameters in zip(self.partition.parts, self._parameters)
        )


def _refuse_aliases(tensors: tuple[torch.Tensor, ...], written: list[int]) -> None:
    """Raise if a tensor of the batch that the forward changes shares memory with another."""
    for at in written:
        storage = tensors[at].untyped_storage().data_ptr()
        if any(t.untyped_storage().data_ptr() == storage for t in tensors[:at] + tensors[at + 1 :]):
            raise InvalidBatch(
                "The forward changes a tensor of the batch in place, and another tensor of the "
                "batch shares its memory: pass a clone."
            )


def _apart(saved: list[Any], written: list[torch.Tensor]) -> list[Any]:
    """Copy saved values that share memory with a buffer which the step is about to write."""
    storages = {t.untyped_storage().data_ptr() for t in written}
    return [
        v.clone()
        if isinstance(v, torch.Tensor) and v.untyped_storage().data_ptr() in storages
        else v
        for v in saved
    ]


def _getter(model: nn.Module, captured: Captured, placeholder: str) -> Callable | None:
    """A function that looks the tensor of a placeholder up by name; None for the batch's."""
    bound = captured.inputs[placeholder]
    if bound.kind == "batch":
        return None
    if bound.kind == "constant":
        value = captured.constants[placeholder]
        return lambda: value
    path, _, name = bound.name.rpartition(".")
    owner = model.get_submodule(path)
    table = owner._parameters if bound.kind == "parameter" else owner._buffers
    return lambda: table[name]


def _positions(inputs: dict[str, passes.Input], mutated: tuple[str, ...]) -> list[int]:
    batch = [name for name, bound in inputs.items() if bound.kind == "batch"]
    return [batch.index(name) if name in batch else -1 for name in mutated]
