"""Rules of convolutions: receptive fields laid in rows turn them into linear layers."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fxgram.rules.products import product_factors
from fxgram.rules.registry import rule
from passes import Factors, Kernel, NotFactored, Operands
from passes.kernels import convolution_by_calls, convolution_by_groups, windows

aten = torch.ops.aten


def _per_dim(value: Any, dims: int) -> list[int]:
    value = [value] if isinstance(value, int) else list(value)
    return value * dims if len(value) == 1 else value


def _padding(call: Operands, size: list[int], dilation: list[int]) -> list[tuple[int, int]]:
    """Zeros before and behind each spatial dim; `"same"` puts the odd one behind."""
    padding = call["padding"]
    if padding == "valid":
        return [(0, 0)] * len(size)
    if padding == "same":
        total = [gap * (taps - 1) for taps, gap in zip(size, dilation)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in _per_dim(padding, len(size))]


def _windows(
    call: Operands,
    x: fx.Node,
    size: list[int],
    stride: list[int],
    padding: list[tuple[int, int]],
    dilation: list[int],
    groups: int,
) -> fx.Node:
    """Emit `windows` with its size worked out here: tracing it with symbolic sizes is slow."""
    if all(n == 1 for n in (*size, *stride)) and not any(map(any, padding)):
        return _channels(call, x, groups)
    value = x.meta["val"]
    positions = [
        (n + before + behind - gap * (taps - 1) - 1) // step + 1
        for n, (before, behind), gap, taps, step in zip(
            value.shape[2:], padding, dilation, size, stride
        )
    ]
    columns = value.shape[1] // groups * math.prod(size)
    fake = value.new_empty(value.shape[0], groups, columns, math.prod(positions))
    return call.emitter.call(windows, x, size, stride, padding, dilation, groups, val=fake)


def _channels(call: Operands, node: fx.Node, groups: int) -> fx.Node:
    """`[n, g*c, *space]` to `[n, g, c, s]`."""
    shape = node.meta["val"].shape
    sizes = [-1, groups, shape[1] // groups, math.prod(shape[2:])]
    return call.emitter.call(aten.reshape.default, node, sizes)


def _kernels(
    call: Operands, x: fx.Node, padding: list[tuple[int, int]], **options: Any
) -> tuple[Kernel, ...]:
    """Per-sample gradients of the weight by the operator's own backward."""
    gradient, weight = call.cotangent(), call.value
    axis = call.cotangent_axis()
    if axis.outer > 1 or tuple(weight.meta["val"].shape) != tuple(call.shape):
        return ()
    if any(before != behind for before, behind in padding):
        flat = [p for pair in reversed(padding) for p in pair]
        x = call.emitter.call(aten.constant_pad_nd.default, x, flat)
        padding = [(0, 0)] * len(padding)
    before = [p for p, _ in padding]
    values = (options["stride"], before, options["dilation"], options.get("output") is not None,
              options.get("output") or [0] * len(before), options["groups"])  # fmt: skip
    rows = x.meta["val"].shape[0]
    count = rows if axis.dim is None else axis.inner
    samples = 1 if axis.dim is None else rows // count
    fake = gradient.meta["val"].new_empty(samples, *call.shape)
    emit = call.emitter.call
    calls = emit(convolution_by_calls, gradient, x, weight, count, values, val=fake)
    found = (Kernel("calls", calls),)
    if count == 1 and axis.dim is not None:
        grouped = emit(convolution_by_groups, gradient, x, weight, values, val=fake)
        found += (Kernel("groups", grouped),)
    return found


def _samples_lead(call: Operands, node: fx.Node) -> None:
    """Convolutions take samples on dim 0; anything else goes to the fallback."""
    if call.is_whole:
        return
    if call.axis(node).dim != 0 or call.cotangent_axis().dim != 0:
        raise NotFactored
    if call.axis(node) != call.cotangent_axis():
        raise NotFactored


def _conv_weight(call: Operands) -> Factors:
    """`y[n, o, p] = sum_{c, tap} x[n, c, p * stride + tap * dilation] w[o, c, tap]`."""
    x, gradient = call["input"], call.cotangent()
    size = list(call.shape[2:])
    dims = len(size)
    if x.meta["val"].ndim != dims + 2:
        raise NotFactored
    _samples_lead(call, x)
    stride, dilation = _per_dim(call["stride"], dims), _per_dim(call["dilation"], dims)
    groups = call["groups"]
    padding = _padding(call, size, dilation)
    fields = _windows(call, x, size, stride, padding, dilation, groups)
    rows = _channels(call, gradient, groups)
    sizes = [groups, call.shape[0] // groups, math.prod(call.shape[1:])]
    factors = product_factors(
        call.viewed(sizes, x, fields), "goi", "ngos", (fields, "ngis"), cotangent=rows
    )
    kernels = _kernels(call, x, padding, stride=stride, dilation=dilation, groups=groups)
    return replace(factors, kernels=kernels)


def _conv_transpose_weight(call: Operands) -> Factors:
    """The convolution's adjoint: windows of the cotangent meet the positions of the input."""
    x, gradient = call["input"], call.cotangent()
    size = list(call.shape[2:])
    dims = len(size)
    if x.meta["val"].ndim != dims + 2:
        raise NotFactored
    _samples_lead(call, x)
    stride, dilation = _per_dim(call["stride"], dims), _per_dim(call["dilation"], dims)
    groups, space = call["groups"], x.meta["val"].shape[2:]
    # Crop or extend so that there are as many windows as input positions.
    padding = [
        (before, (n - 1) * step + gap * (taps - 1) + 1 - before - out)
        for n, step, gap, taps, before, out in zip(
            space, stride, dilation, size, _per_dim(call["padding"], dims),
            gradient.meta["val"].shape[2:],
        )
    ]  # fmt: skip
    fields = _windows(call, gradient, size, stride, padding, dilation, groups)
    rows = _channels(call, x, groups)
    sizes = [groups, call.shape[0] // groups, math.prod(call.shape[1:])]
    factors = product_factors(
        call.viewed(sizes, x, rows), "gio", "ngos", (rows, "ngis"), cotangent=fields
    )
    padding = [(p, p) for p in _per_dim(call["padding"], dims)]
    output = _per_dim(call["output_padding"], dims)
    kernels = _kernels(
        call, x, padding, stride=stride, dilation=dilation, groups=groups, output=output
    )
    return replace(factors, kernels=kernels)


def _conv_bias(call: Operands) -> Factors:
    """`y[n, o, p] = ... + b[o]`."""
    ndim = call.cotangent().meta["val"].ndim
    return product_factors(call, "o", "noABC"[:ndim])


for _op in (aten.conv1d, aten.conv2d, aten.conv3d):
    for _overload in (_op.default, _op.padding):
        rule(_overload, "weight")(_conv_weight)
        rule(_overload, "bias")(_conv_bias)
for _op in (
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
):
    rule(_op, "weight")(_conv_transpose_weight)
    rule(_op, "bias")(_conv_bias)
