"""Capture model and objective as one graph, faithfully or not at all."""

import logging
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from fxgram.batch import Batch
from fxgram.errors import CaptureError, FxgramError
from fxgram.state import frozen_state
from fxgram.watch import Watch
from passes import Input

# A size that hardly any other dim of a model has, so that no comparison of sizes confuses the two.
_SAMPLE_COUNTS = (61, 67, 71, 73, 79, 83, 89, 97)


@dataclass(frozen=True)
class Captured:
    """The graph of one forward: placeholders are parameters, buffers, constants, then the batch."""

    gm: fx.GraphModule
    inputs: dict[str, Input]  # by placeholder name
    constants: dict[str, torch.Tensor]  # by placeholder name, the objective's own tensors
    samples: sympy.Expr | None  # symbol of K; None: captured for one sample


class _Wrapper(nn.Module):
    """Model and objective as a module whose arguments are the tensors of the batch alone."""

    def __init__(self, model: nn.Module, objective: Callable | None, batch: Batch):
        super().__init__()
        self.model = model
        self._objective, self._batch = objective, batch

    def forward(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self._batch.arguments(tensors)
        with Watch(self.model):
            if self._objective is None:
                return self.model(*args, **kwargs)
            return self._objective(self.model, *args, **kwargs)


def capture(model: nn.Module, objective: Callable | None, batch: Batch) -> Captured:
    """Export `objective(model, *batch)`, with a symbolic number of samples unless there is one.

    Raises: CaptureError with the user's line and the way out.
    """
    wrapper = _Wrapper(model, objective, batch)
    wrapper.training = model.training
    tensors, shapes = batch.tensors, None
    if batch.size > 1:
        tensors = tuple(_resized(batch, model))
        samples = torch.export.Dim("batch", min=2)
        shapes = {"tensors": tuple({0: samples} if b else None for b in batch.batched)}
    with _quiet(), frozen_state(model), python_randomness_unused():
        try:
            program = torch.export.export(wrapper, tensors, dynamic_shapes=shapes, strict=False)
        except FxgramError:
            raise
        except Exception as error:
            raise _explained(error) from error
    return _bound(program, model, batch)


def _resized(batch: Batch, model: nn.Module) -> Iterator[torch.Tensor]:
    """Stand-ins for the tensors of the batch, with an unusual number of samples.

    Export runs on fake tensors: the values are never read.
    """
    seen = {n for t in (*batch.tensors, *model.parameters(), *model.buffers()) for n in t.shape}
    count = next((n for n in _SAMPLE_COUNTS if n not in seen), _SAMPLE_COUNTS[0])
    for tensor, batched in zip(batch.tensors, batch.batched):
        if not batched:
            yield tensor
            continue
        order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
        shape = (count, *tensor.shape[1:])
        stand_in = torch.empty_permuted(shape, order, dtype=tensor.dtype, device=tensor.device)
        yield stand_in.requires_grad_(tensor.requires_grad)


def _bound(program: torch.export.ExportedProgram, model: nn.Module, batch: Batch) -> Captured:
    """Say what each placeholder stands for."""
    canonical = first_names(model)
    inputs, constants, samples = {}, {}, None
    names = iter(zip(batch.names, batch.batched))
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, (spec.target or "").removeprefix("model.")
        if spec.kind == InputKind.PARAMETER:
            parameter = model.get_parameter(target)
            inputs[name] = Input("parameter", canonical[id(parameter)], parameter.requires_grad)
        elif spec.kind == InputKind.BUFFER:
            inputs[name] = Input("buffer", target)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            inputs[name] = Input("constant", spec.target)
            constants[name] = program.constants[spec.target]
        elif spec.kind == InputKind.USER_INPUT:
            written, batched = next(names)
            inputs[name] = Input("batch", written)
            if batched and batch.size > 1:
                samples = placeholders[name].meta["val"].shape[0].node.expr
        else:
            raise CaptureError(f"The model holds an object that is no tensor: {spec.target}.")
    return Captured(program.graph_module, inputs, constants, samples)


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every parameter, by identity: tied weights share it."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep export's own log lines away from users, and einsum from fixing the batch size."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.fx", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    shapes = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    levels.append(shapes.level)
    enabled = torch.backends.opt_einsum.enabled
    for logger in (*loggers, shapes):
        logger.setLevel(logging.CRITICAL)
    torch.backends.opt_einsum.enabled = False
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.backends.opt_einsum.enabled = enabled
        for logger, level in zip((*loggers, shapes), levels):
            logger.setLevel(level)


def user_line(error: BaseException) -> str | None:
    """`file:line: code` of the innermost frame of the user's own code in a traceback."""
    own = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename.replace("\\", "/")
        if any(part in path for part in ("/torch/", "/fxgram/", "/passes/")) or path.startswith("<"):
            continue
        own = f"{path.rsplit('/', 1)[-1]}:{frame.lineno}: {frame.line}"
    return own


def _explained(error: Exception) -> CaptureError:
    """Say in the user's words what export objects to."""
    text, line = str(error), user_line(error)
    at = f" at {line}" if line else ""
    kind = type(error).__name__
    if "specialized it to be a constant" in text or "Constraints violated" in text:
        return CaptureError(
            "The model or objective fixes the batch size, or behaves differently for different "
            "batch sizes. Write sizes as len(x) or x.shape[0] rather than as numbers, avoid loops "
            f"over the samples and `if` on the batch size. PyTorch says: {text.splitlines()[0]} "
            + " ".join(text.splitlines()[1:3])
        )
    if "DataDependent" in kind or "data-dependent" in text:
        return CaptureError(
            f"Control flow or a size depends on the values of a tensor{at}. Use torch.where or a mask "
            f"instead of `if`, `.item()` and boolean indexing. PyTorch says: {text.splitlines()[0]}"
        )
    return CaptureError(
        f"The model or objective could not be captured{at}: {kind}: {text.splitlines()[0] if text else ''}"
    )


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
