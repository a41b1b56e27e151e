"""`compile` and the step that it returns."""

import copy
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxgram.autocast import autocast
from fxgram.batch import Batch, flatten, validate_batch_dim
from fxgram.compilation import compile_program
from fxgram.errors import InvalidArgument, InvalidBatch, InvalidLosses
from fxgram.explain import Explanation, PassTable
from fxgram.guards import Guard
from fxgram.models import unwrapped
from fxgram.options import Options
from fxgram.planning.memory import Memory
from fxgram.planning.timings import described
from fxgram.program import Product, Program
from fxgram.returned import Aux, Objective
from fxgram.state import frozen_state
from fxgram.symbolic import Symbolic
from fxgram.symbolic import explain as formulas

_COMPILING = threading.RLock()  # tracing puts stand-ins into models and modes onto PyTorch's stacks
_KEPT = 8  # programs for one kind of batch
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
        aux: True, the objective returns `(losses, aux)` and the step `(losses, gramian, aux)`: any
            container of tensors, which come detached, and of plain values, read when compiling.
        cross_terms: False, every use of a parameter counts as a parameter of its own in the
            Gramian (the gradients are the true ones either way); True, exactly `J Jᵀ`.
        memory_budget: bytes, or a text such as "2GiB", that a step may take beyond the ordinary
            forward and backward; a batch for which nothing fits raises InvalidArgument, naming
            the least that does. None: half of what those take, and 64 MiB at least.
        retain: "cotangents" keeps them, or per-sample gradients, for `losses.backward`;
            "recompute" keeps what autograd keeps and runs a second backward; "auto" does what fits.
        check: compare the first batch of every compiled program with the eager model, and test
            that samples are independent; costs one eager step and one more backward.
        plan: "cost" chooses how each use is contracted by formulas; "measure" times the best few,
            once for each shape and device, and keeps the figures in the user's cache folder (or in
            the one that the environment variable FXGRAM_CACHE names).
        example: a batch (tuple of arguments) to compile for now, not at the first call.

    The losses may come as a tuple, list or dict, also nested, in the order of
    `torch.utils._pytree` (dicts as written). With `batch_dim=None` the tensors are flattened and
    follow each other: `{"a": [2], "b": []}` gives losses `[3]`. Otherwise every tensor holds the
    samples on its first axis and they stand side by side: `{"a": [K], "b": [K, 2]}` gives columns
    of `[K, 3]`, whose rows follow `losses.flatten()`, sample by sample.

    The objective may differentiate inside: torch.func, or torch.autograd.grad with
    `create_graph=True`. Such a program may hold for one batch size alone.

    The other options are reserved and raise NotImplementedError.

    Raises:
        InvalidArgument: for a model, objective or option of the wrong kind. The step raises it for
            a memory budget that a batch can't keep to, naming the least possible one.
        NotImplementedError: for an option that is not implemented, naming it.
    """
    reserved = {
        "parameters": (parameters, None),
        "accumulate_dtype": (accumulate_dtype, None),
        "backend": (backend, "eager"),
        "group": (group, None),
    }
    for name, (value, default) in reserved.items():
        if value is not default and value != default:
            raise NotImplementedError(f"{name}={value!r} is not implemented yet; leave it out")
    options = Options.of(memory_budget, retain, plan)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"`model` must be an nn.Module, not {type(model).__name__}.")
    if objective is not None and not callable(objective):
        raise InvalidArgument(f"`objective` must be callable, not {type(objective).__name__}.")
    validate_batch_dim(batch_dim)
    model = unwrapped(model)
    objective = Objective(model, objective, bool(aux))
    step = GramianStep(objective, batch_dim, bool(cross_terms), bool(check), options)
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
        objective: Objective,
        batch_dim: Any,
        cross_terms: bool,
        check: bool,
        options: Options,
    ):
        self._objective, self._options = objective, options
        self._batch_dim, self._cross_terms, self._check = batch_dim, cross_terms, check
        self._programs: dict[tuple, list[tuple[Guard, Program]]] = {}
        self._last: Program | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple:
        """Run the step: losses `[K]` and their Gramian `[K, K]`, then what aux holds, if asked for.

        Losses `[K, T]`, T for each sample, give a Gramian `[K*T, K*T]` whose rows follow
        `losses.flatten()`.

        `losses.backward(weights)` adds `weightsᵀ J` to `.grad`. The Gramian carries no graph. Under
        `torch.no_grad()` nothing is kept for a backward.

        Raises: FxgramError, see `fxgram.errors`.
        """
        return self._run("gramian", args, kwargs)

    def diagonal(self, *args: Any, **kwargs: Any) -> tuple:
        """Run the step for the diagonal alone: losses `[K]` and squared gradient norms `[K]`.

        Costs less than the Gramian: no products between samples. `losses.backward(weights)` as
        after a step, e.g. with the factors that clip each gradient. Losses `[K, T]` give norms
        `[K*T]` in the order of `losses.flatten()`.

        Raises: FxgramError, see `fxgram.errors`.
        """
        return self._run("diagonal", args, kwargs)

    def _run(self, product: Product, args: tuple, kwargs: dict[str, Any]) -> tuple:
        batch = flatten(args, kwargs, self._batch_dim)
        self._refuse(batch)
        if batch.size == 0 or self._has_no_losses(batch):
            return self._empty(batch, product)
        with autocast(batch.autocast, enabled=False):
            with _COMPILING:
                program = self._program(batch)
                planned = program.planned(batch.size, product)
            found = planned(batch.tensors)
        return self._results(*found, program.captured.aux)

    def prepare(self, *args: Any, **kwargs: Any) -> "GramianStep":
        """Compile for a batch like this one without running the step; returns the step."""
        batch = flatten(args, kwargs, self._batch_dim)
        self._refuse(batch)
        if batch.size:
            with autocast(batch.autocast, enabled=False):
                self._program(batch)
        return self

    def memory(self, *args: Any, **kwargs: Any) -> Memory:
        """Predict what a step on this batch and its backward allocate at once, in bytes.

        Counted are bytes of tensors on top of the model, its `.grad`, and the batch. The step is
        not run: its modules are, on tensors that have sizes alone. Compiles if there is no program
        for such a batch yet.

        Raises: FxgramError, see `fxgram.errors`.
        """
        batch = flatten(args, kwargs, self._batch_dim)
        self._refuse(batch)
        if batch.size == 0:
            raise InvalidBatch("A batch without samples takes no memory: pass one with samples.")
        with autocast(batch.autocast, enabled=False):
            program = self._program(batch)
            with torch.inference_mode(False), frozen_state(self._objective.model):
                return program.memory(batch.tensors, batch.size)

    @property
    def passes(self) -> PassTable:
        """What each pass did to the last used program: a table, and the graph after each."""
        return PassTable(tuple(self._used().records))

    @property
    def uses(self) -> tuple:
        """One row for each use of a parameter in the last used program."""
        return self.explain().rows

    def explain(self, *, symbolic: bool = False) -> Explanation | Symbolic:
        """Where each parameter is used, and how that use's part of the Gramian is computed.

        With `symbolic`, the costs of all ways to contract a use as formulas in its sizes, and the
        numbers of samples or of positions at which another one becomes the best.
        """
        program = self._used()
        samples = program.last_samples
        plan = program.plan(samples)
        if symbolic:
            device = program.losses_like(samples).device
            return formulas(program.contributions, plan.choices, samples, described(device))
        losses = program.losses_like(samples).numel()
        shared = losses if self._batch_dim is None else None
        return Explanation.of(program.contributions, plan, samples, shared, program.measures)

    def __deepcopy__(self, memo: dict) -> "GramianStep":
        """A step for a copy of the model; it compiles anew."""
        objective = copy.deepcopy(self._objective, memo)
        return GramianStep(
            objective, self._batch_dim, self._cross_terms, self._check, self._options
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled programs, which are made again when they are needed."""
        return {**vars(self), "_programs": {}, "_last": None}

    def __repr__(self) -> str:
        if self._last is None:
            return f"GramianStep({type(self._objective.model).__name__}, not compiled yet)"
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
            for at, tensor in enumerate(batch.tensors):
                if tensor.requires_grad:
                    name = batch.names[at]
                    raise InvalidBatch(
                        f"`{name}` requires grad: gradients of batch tensors are not supported. "
                        f"Pass {name}.detach(). (Under torch.no_grad() the step gives losses and "
                        "Gramian alone.)"
                    )

    def _program(self, batch: Batch) -> Program:
        with _COMPILING:
            return self._compiled(batch)

    def _compiled(self, batch: Batch) -> Program:
        entries = self._programs.setdefault(batch.key, [])
        for guard, program in entries:
            if program.serves(batch.size) and guard.holds():
                break
        else:
            program = compile_program(
                self._objective,
                batch,
                coupled=self._batch_dim is None,
                cross_terms=self._cross_terms,
                check=self._check,
                options=self._options,
            )
            guard = Guard(self._objective.model, self._objective.function)
            entries.append((guard, program))
            if len(entries) > _KEPT:
                del entries[0]
                _log.warning(
                    "compiled more than %d times for one kind of batch: an attribute or a value "
                    "that the objective reads changes from call to call",
                    _KEPT,
                )
        self._last = program
        program.last_samples = batch.size
        return program

    def _has_no_losses(self, batch: Batch) -> bool:
        """Whether losses that may share samples are none, which only the eager model tells."""
        if self._batch_dim is not None or all(t.numel() for t in batch.tensors):
            return False
        with torch.no_grad(), frozen_state(self._objective.model, tensors=True):
            losses = self._objective(batch, batch.tensors).losses
        return isinstance(losses, Tensor) and not losses.numel()

    def _empty(self, batch: Batch, product: Product) -> tuple:
        """No samples: there is nothing to share, so the eager model itself runs."""
        returned = self._objective(batch, batch.tensors)
        losses = returned.losses
        if not isinstance(losses, Tensor) or losses.numel() or not losses.is_floating_point():
            raise InvalidLosses("An empty batch needs empty losses, of shape [0] or [0, T].")
        dtype = torch.promote_types(losses.dtype, torch.float32)
        gramian = losses.detach().new_zeros([0] * (2 if product == "gramian" else 1), dtype=dtype)
        return self._results(losses, gramian, returned.values, returned.aux)

    @staticmethod
    def _results(losses: Tensor, gramian: Tensor, values: tuple, aux: Aux | None) -> tuple:
        return (losses, gramian) if aux is None else (losses, gramian, aux.filled(values))
