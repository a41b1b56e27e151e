"""Run `torch.export` for a symbolic number of samples, or for one."""

import builtins
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from fxgram.batch import Batch
from fxgram.errors import CaptureError, FxgramError
from fxgram.wrapper import Wrapper


def _export(wrapper: Wrapper, tensors: tuple[torch.Tensor, ...], shapes: Any) -> Any:
    try:
        return torch.export.export(wrapper, tensors, dynamic_shapes=shapes, strict=False)
    except (FxgramError, torch._dynamo.exc.UserError):
        raise
    except Exception as error:
        raise _explained(error) from error


def export_static(wrapper: Wrapper, batch: Batch) -> Any:
    try:
        return _export(wrapper, batch.tensors, None)
    except torch._dynamo.exc.UserError as error:
        raise _explained(error) from error


def export_symbolic(wrapper: Wrapper, batch: Batch, count: int) -> Any:
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


def sample_range(program: Any) -> tuple[int, int]:
    """The numbers of samples that an exported program holds for."""
    (found,) = list(program.range_constraints.values()) or [None]
    if found is None:
        return 2, sys.maxsize
    top = found.upper
    return max(2, int(found.lower)), int(top) if isinstance(top, sympy.Integer) else sys.maxsize


def serves(program: Any, batch: Batch) -> bool:
    low, high = sample_range(program)
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


@contextmanager
def quiet() -> Iterator[None]:
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
        if any(part in path for part in ("/torch/", "/fxgram/", "/passes/")) or path.startswith(
            "<"
        ):
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
            f"Control flow or a size depends on the values of a tensor{at}. Use torch.where or a "
            f"mask instead of `if`, `.item()` and boolean indexing. PyTorch says: "
            f"{text.splitlines()[0]}"
        )
    first = text.splitlines()[0] if text else ""
    return CaptureError(f"The model or objective could not be captured{at}: {kind}: {first}")
