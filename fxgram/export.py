"""Run `torch.export` for a symbolic number of samples, or for one."""

import builtins
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
import torch.fx.traceback
from torch._subclasses.fake_tensor import FakeTensor

from fxgram.batch import Batch
from fxgram.capture_errors import explained
from fxgram.captured import LARGEST
from fxgram.errors import FxgramError
from fxgram.wrapper import Wrapper


def _export(wrapper: Wrapper, tensors: tuple[torch.Tensor, ...], shapes: Any) -> Any:
    with torch.fx.traceback.preserve_node_meta():
        return torch.export.export(wrapper, tensors, dynamic_shapes=shapes, strict=False)


def export_static(wrapper: Wrapper, batch: Batch) -> Any:
    """Export for the sizes of this batch alone."""
    try:
        return _export(wrapper, tuple(stand_ins(batch, None)), None)
    except FxgramError:
        raise
    except Exception as error:
        raise explained(error, wrapper.watch.loop, None) from error


def export_symbolic(wrapper: Wrapper, batch: Batch, count: int) -> Any:
    """Export for a symbolic number of samples, seen as `count` while tracing.

    An operator or an `if` that decides by the number of samples leaves a program for the range of
    numbers with the same decisions as `count`.
    """
    tensors = tuple(stand_ins(batch, count))
    low, high = 2, None
    for attempt in range(2):
        samples = torch.export.Dim("batch", min=low, max=high)
        shapes: Any = {"tensors": tuple(None if d is None else {d: samples} for d in batch.dims)}
        try:
            return _export(wrapper, tensors, shapes)
        except FxgramError:
            raise
        except Exception as error:
            found = re.search(_SUGGESTED, str(error))
            if found is None or attempt:
                raise explained(error, wrapper.watch.loop, count, batch.size) from error
            low, high = max(int(found[1] or 2), 2), int(found[2]) if found[2] else None
    raise AssertionError("the second attempt returns or raises")


def sample_range(program: Any) -> tuple[int, int]:
    """The numbers of samples that an exported program holds for."""
    # Symbols of other kinds are values read from tensors, which capture refuses.
    found = next(
        (r for s, r in program.range_constraints.items() if re.fullmatch(r"s\d+", str(s))), None
    )
    if found is None:
        return 2, LARGEST
    top = found.upper
    return max(2, int(found.lower)), int(top) if isinstance(top, sympy.Integer) else LARGEST


def serves(program: Any, batch: Batch) -> bool:
    low, high = sample_range(program)
    return low <= batch.size <= high


_SUGGESTED = r"batch = Dim\('batch'(?:, min=(\d+))?(?:, max=(\d+))?\)"


@contextmanager
def symbolic_len() -> Iterator[None]:
    """Let `len(x)` of a tensor be its symbolic size; Python itself insists on a number.

    In this thread, and for fake tensors: whatever else runs gets Python's own `len`.
    """
    plain, owner = builtins.len, threading.get_ident()

    def symbolic(value: Any) -> Any:
        if isinstance(value, FakeTensor) and value.ndim and threading.get_ident() == owner:
            return value.shape[0]
        return plain(value)

    builtins.len = symbolic
    try:
        yield
    finally:
        builtins.len = plain


def stand_ins(batch: Batch, count: int | None) -> Iterator[torch.Tensor]:
    """Tensors like those of the batch, with `count` samples if that is given.

    Export runs on fake tensors: values are never read, and memory never touched.
    """
    for tensor, dim in zip(batch.tensors, batch.dims):
        shape = list(tensor.shape)
        if dim is not None and count is not None:
            shape[dim] = count
        order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
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
            # Formulas of forward-mode derivatives are scripted when they are first needed.
            warnings.filterwarnings("ignore", message=".*torch.jit.script")
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not")
            yield
    finally:
        torch.backends.opt_einsum.enabled = enabled
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
