"""`compile` and the step that it returns."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxgram.autocast import autocast
from fxgram.batch import Batch, flatten, validate_batch_dim
from fxgram.capture import capture
from fxgram.checks import check as check_program
from fxgram.errors import InvalidArgument, InvalidBatch, InvalidLosses
from fxgram.explain import Explanation, PassTable
from fxgram.guards import Guard
from fxgram.models import refuse_model, unwrapped
from fxgram.program import Program

_log = logging.getLogger("fxgram")


def compile(
    model: nn.Module,
    objective: Callable | None = None,
    *,
    batch_dim: Any = 0,
    cross_terms: bool = False,
    parameters: Any = None,
    aux: bool = False,
    memory_budget: int | str | None = None,
    retain: str = "auto",
    plan: str = "cost",
    accumulate_dtype: torch.dtype | None = None,
    backend: Any = "eager",
    group: Any = None,
    check: bool = True,
    example: Any = None,
) -> "GramianStep":
    """Compile a model and an objective into a step that returns losses and their Gramian.

    Args:
        model: any module; its parameters that require grad are differentiated.
        objective: `objective(model, *batch, **kwargs) -> losses [K]`, one loss per sample;
            None if `model(*batch, **kwargs)` returns the losses.
        batch_dim: the dim that holds the samples in every tensor of the batch; or a tuple with an
            entry for each positional argument (a dim, None for what the samples share, or a tree of
            these), as `in_dims` of torch.vmap. None: losses of any shape that may share samples
            (one for each task, contrastive, batch norm in training mode), one backward for each.
        cross_terms: False, every use of a parameter counts as a parameter of its own in the
            Gramian (the gradients are the true ones either way); True, exactly `J Jᵀ`.
        check: compare the first batch of every compiled program with the eager model, and test
            that samples are independent; costs one eager step and one more backward.
        example: a batch (tuple of arguments) to compile for now, not at the first call.

    The other options are reserved and raise NotImplementedError.

    Raises:
        InvalidArgument: for a model, objective or option of the wrong kind.
        NotImplementedError: for an option that is not implemented, naming it.
    """
    reserved = {
        "parameters": (parameters, None),
        "aux": (aux, False),
        "memory_budget": (memory_budget, None),
        "retain": (retain, "auto"),
        "plan": (plan, "cost"),
        "accumulate_dtype": (accumulate_dtype, None),
        "backend": (backend, "eager"),
        "group": (group, None),
    }
    for name, (value, default) in reserved.items():
        if value is not default and value != default:
            raise NotImplementedError(f"{name}={value!r} is not implemented yet; leave it out")
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"`model` must be an nn.Module, not {type(model).__name__}.")
    if objective is not None and not callable(objective):
        raise InvalidArgument(f"`objective` must be callable, not {type(objective).__name__}.")
    validate_batch_dim(batch_dim)
    model = unwrapped(model)
    step = GramianStep(model, objective, batch_dim, bool(cross_terms), bool(check))
    if example is not None:
        step.prepare(*(example if isinstance(example, tuple | list) else (example,)))
    return step


class GramianStep:
    """`losses, gramian = step(*batch)`, then `losses.backward(weights)`.

    Compiles at the first call, and again when something it was specialised on changes; any number
    of samples of two or more shares one program.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Callable | None,
        batch_dim: Any,
        cross_terms: bool,
        check: bool,
    ):
        self._model, self._objective = model, objective
        self._batch_dim, self._cross_terms, self._check = batch_dim, cross_terms, check
        self._programs: dict[tuple, list[tuple[Guard, Program]]] = {}
        self._last: Program | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Run the step: losses `[K]` and their Gramian `[K, K]`.

        Losses `[K, T]`, T for each sample, give a Gramian `[K*T, K*T]` whose rows follow
        `losses.flatten()`.

        `losses.backward(weights)` adds `weightsᵀ J` to `.grad`. The Gramian carries no graph. Under
        `torch.no_grad()` nothing is kept for a backward.

        Raises: FxgramError, see `fxgram.errors`.
        """
        batch = flatten(args, kwargs, self._batch_dim)
        self._refuse(batch)
        if batch.size == 0:
            return self._empty(batch)
        with autocast(batch.autocast, enabled=False):
            return self._program(batch).planned(batch.size)(batch.tensors)

    def prepare(self, *args: Any, **kwargs: Any) -> "GramianStep":
        """Compile for a batch like this one without running the step; returns the step."""
        batch = flatten(args, kwargs, self._batch_dim)
        self._refuse(batch)
        if batch.size:
            with autocast(batch.autocast, enabled=False):
                self._program(batch)
        return self

    @property
    def passes(self) -> PassTable:
        """What each pass did to the last used program: a table, and the graph after each."""
        return PassTable(tuple(self._used().records))

    @property
    def uses(self) -> tuple:
        """One row for each use of a parameter in the last used program."""
        return self.explain().rows

    def explain(self) -> Explanation:
        """Where each parameter is used, and how that use's part of the Gramian is computed."""
        program = self._used()
        return Explanation.of(program.contributions, program.last_samples)

    def __repr__(self) -> str:
        if self._last is None:
            return f"GramianStep({type(self._model).__name__}, not compiled yet)"
        return str(self.explain())

    def _used(self) -> Program:
        if self._last is None:
            raise InvalidArgument(
                "Nothing is compiled yet: call the step, or step.prepare(*batch), first."
            )
        return self._last

    def _refuse(self, batch: Batch) -> None:
        """What no program can serve."""
        if torch.is_grad_enabled():
            for tensor, name in zip(batch.tensors, batch.names):
                if tensor.requires_grad:
                    raise InvalidBatch(
                        f"`{name}` requires grad: gradients of batch tensors are not supported. "
                        f"Pass {name}.detach(), or run the step under torch.no_grad()."
                    )

    def _program(self, batch: Batch) -> Program:
        entries = self._programs.setdefault(batch.key, [])
        for guard, program in entries:
            if program.serves(batch.size) and guard.holds():
                break
        else:
            program = self._compile(batch)
            guard = Guard(self._model, self._objective)
            entries.append((guard, program))
        self._last = program
        program.last_samples = batch.size
        return program

    def _compile(self, batch: Batch) -> Program:
        kind = f"{batch.size} sample" + ("s (and any other number)" if batch.size > 1 else "")
        _log.info("compiling %s for %s", type(self._model).__name__, kind)
        refuse_model(self._model)
        with torch.inference_mode(False):
            return self._compiled(batch)

    def _compiled(self, batch: Batch) -> Program:
        captured = capture(self._model, self._objective, batch)
        program = Program(
            captured,
            self._model,
            batch.size,
            coupled=self._batch_dim is None,
            cross_terms=self._cross_terms,
        )
        if self._check:
            check_program(program, self._model, self._objective, batch)
        if not self._cross_terms:
            self._warn_of_reuse(program)
        return program

    def _warn_of_reuse(self, program: Program) -> None:
        counts: dict[str, int] = {}
        for contribution in program.contributions:
            for use in contribution.uses:
                counts[use.parameter] = counts.get(use.parameter, 0) + 1
        reused = {name: n for name, n in counts.items() if n > 1}
        if reused:
            listed = ", ".join(f"{name} ({n} uses)" for name, n in reused.items())
            _log.warning(
                "parameters used more than once: %s. The Gramian leaves out the cross terms "
                "between their uses (cross_terms=False).",
                listed,
            )

    def _empty(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """No samples: there is nothing to share, so the eager model itself runs."""
        args, kwargs = batch.arguments(batch.tensors)
        call = self._model if self._objective is None else self._objective
        losses = (
            call(*args, **kwargs) if call is self._model else call(self._model, *args, **kwargs)
        )
        if not isinstance(losses, Tensor) or losses.numel() or not losses.is_floating_point():
            raise InvalidLosses("An empty batch needs empty losses, of shape [0] or [0, T].")
        return losses, losses.new_zeros(0, 0).detach()
