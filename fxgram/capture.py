"""Capture model and objective as one graph, faithfully or not at all."""

import builtins
import logging
import random
import re
import sys
import traceback
import warnings
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
from fxgram.wrapper import Wrapper
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
    sizes: tuple[int, int]  # least and largest K that the graph holds for


def capture(model: nn.Module, objective: Callable | None, batch: Batch) -> Captured:
    """Export `objective(model, *batch)`, with a symbolic number of samples unless there is one.

    Raises: CaptureError with the user's line and the way out.
    """
    wrapper = Wrapper(model, objective, batch)
    with _quiet(), frozen_state(model), python_randomness_unused(), symbolic_len():
        if batch.size < 2:
            program = _export_static(wrapper, batch)
        else:
            seen = {n for t in (*batch.tensors, *model.parameters()) for n in t.shape}
            usual = next((n for n in _SAMPLE_COUNTS if n not in seen), _SAMPLE_COUNTS[0])
            program = _export_symbolic(wrapper, batch, usual)
            if not _serves(program, batch):
                program = _export_symbolic(wrapper, batch, batch.size)
    return _bound(program, model, batch)


def _export(wrapper: Wrapper, tensors: tuple[torch.Tensor, ...], shapes: Any) -> Any:
    try:
        return torch.export.export(wrapper, tensors, dynamic_shapes=shapes, strict=False)
    except (FxgramError, torch._dynamo.exc.UserError):
        raise
    except Exception as error:
        raise _explained(error) from error


def _export_static(wrapper: Wrapper, batch: Batch) -> Any:
    try:
        return _export(wrapper, batch.tensors, None)
    except torch._dynamo.exc.UserError as error:
        raise _explained(error) from error


def _export_symbolic(wrapper: Wrapper, batch: Batch, count: int) -> Any:
    """Export for a symbolic number of samples, seen as `count` while tracing.

    An operator or an `if` that decides by the number of samples leaves a program for the range of
    numbers with the same decisions as `count`.
    """
    tensors = tuple(_resized(batch, count))
    samples = torch.export.Dim("batch", min=2)
    shapes: Any = {"tensors": tuple(None if d is None else {d: samples} for d in batch.dims)}
    try:
        return _export(wrapper, tensors, shapes)
    except torch._dynamo.exc.UserError as error:
        found = re.search(r"batch = Dim\('batch'(?:, min=(\d+))?(?:, max=(\d+))?\)", str(error))
        if found is None:
            raise _explained(error) from error
        low, high = (int(bound) if bound else None for bound in found.groups())
        narrowed = torch.export.Dim("batch", min=max(low or 2, 2), max=high)
        shapes = {"tensors": tuple(None if d is None else {d: narrowed} for d in batch.dims)}
        try:
            return _export(wrapper, tensors, shapes)
        except torch._dynamo.exc.UserError as again:
            raise _explained(again) from again


def _range(program: Any) -> tuple[int, int]:
    """The numbers of samples that an exported program holds for."""
    (found,) = [r for r in program.range_constraints.values()] or [None]
    if found is None:
        return 2, sys.maxsize
    top = found.upper
    return max(2, int(found.lower)), int(top) if isinstance(top, sympy.Integer) else sys.maxsize


def _serves(program: Any, batch: Batch) -> bool:
    low, high = _range(program)
    return low <= batch.size <= high


@contextmanager
def symbolic_len() -> Iterator[None]:
    """Let `len(x)` of a tensor be its symbolic size; Python itself insists on a number."""
    plain = builtins.len

    def symbolic(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.ndim:
            return value.shape[0]
        return plain(value)

    builtins.len = symbolic
    try:
        yield
    finally:
        builtins.len = plain


def _resized(batch: Batch, count: int) -> Iterator[torch.Tensor]:
    """Stand-ins for the tensors of the batch, with an unusual number of samples.

    Export runs on fake tensors: the values are never read.
    """
    for tensor, dim in zip(batch.tensors, batch.dims):
        if dim is None:
            yield tensor
            continue
        order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
        shape = (*tensor.shape[:dim], count, *tensor.shape[dim + 1 :])
        stand_in = torch.empty_permuted(shape, order, dtype=tensor.dtype, device=tensor.device)
        yield stand_in.requires_grad_(tensor.requires_grad)


def _bound(program: torch.export.ExportedProgram, model: nn.Module, batch: Batch) -> Captured:
    """Say what each placeholder stands for."""
    canonical = first_names(model)
    inputs, constants, samples = {}, {}, None
    names = iter(zip(batch.names, batch.dims))
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
            written, dim = next(names)
            inputs[name] = Input("batch", written)
            if dim is not None and batch.size > 1:
                samples = placeholders[name].meta["val"].shape[dim].node.expr
        else:
            raise CaptureError(f"The model holds an object that is no tensor: {spec.target}.")
    sizes = (1, 1) if samples is None else _range(program)
    return Captured(program.graph_module, inputs, constants, samples, sizes)


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every parameter, by identity: tied weights share it."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep export's own log lines away from users, and einsum from fixing the batch size."""
    names = ("torch.export", "torch.fx", "torch._dynamo", "torch._subclasses.fake_tensor",
             "torch.fx.experimental.symbolic_shapes")  # fmt: skip
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    enabled = torch.backends.opt_einsum.enabled
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    torch.backends.opt_einsum.enabled = False
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            # The wrapper finds assigned attributes itself; `_flat_weights` of an LSTM is none.
            warnings.filterwarnings("ignore", message="The tensor attribute")
            yield
    finally:
        torch.backends.opt_einsum.enabled = enabled
        for logger, level in zip(loggers, levels):
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
