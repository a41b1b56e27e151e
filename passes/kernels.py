"""Tensor functions that the emitted graphs call: windows, sums, per-sample gradients."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def windows(
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[tuple[int, int]],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Lay the receptive fields of a convolution in columns.

    `x [n, g*c, *space]` gives `[n, g, c*taps, s]`, s the output positions, taps the kernel's.
    """
    flat = [p for pair in reversed(padding) for p in pair]
    if any(flat):
        x = torch.nn.functional.pad(x, flat)
    n, space = x.shape[0], len(size)
    for d, (taps, step, gap) in enumerate(zip(size, stride, dilation)):
        x = x.unfold(2 + d, gap * (taps - 1) + 1, step)
    x = x[(..., *(slice(None, None, gap) for gap in dilation))]
    x = x.unflatten(1, (groups, -1))  # [n, g, c, *positions, *taps]
    positions = [3 + d for d in range(space)]
    taps = [3 + space + d for d in range(space)]
    count = math.prod(x.shape[d] for d in positions)
    x = x.permute(0, 1, 2, *taps, *positions)
    return x.reshape(n, groups, math.prod(x.shape[2 : 3 + space]), count)


def convolution_by_calls(
    gradient: Tensor, x: Tensor, weight: Tensor, count: int, options: tuple
) -> Tensor:
    """Per-sample gradients `[k, *weight]` of a convolution, one call of its backward for each.

    `count`: rows of `x [k * count, c, *space]` that belong to one sample; `options`: those of
    `aten.convolution_backward` from `stride` to `groups`.
    """
    dtype = promoted((gradient, x))
    found = weight.new_empty(x.shape[0] // count, *weight.shape, dtype=dtype)
    for row, g, part in zip(found, gradient.split(count), x.split(count)):
        row.copy_(_weight_gradient(g, part, weight, options))
    return found


def convolution_by_groups(gradient: Tensor, x: Tensor, weight: Tensor, options: tuple) -> Tensor:
    """Per-sample gradients `[k, *weight]` of a convolution: all samples as groups of one call."""
    k = x.shape[0]
    if not k:
        return weight.new_empty(0, *weight.shape)
    wide = weight.repeat(k, *[1] * (weight.ndim - 1))
    gradient, x = (t.reshape(1, -1, *t.shape[2:]) for t in (gradient, x))
    found = _weight_gradient(gradient, x, wide, (*options[:-1], options[-1] * k))
    return found.view(k, *weight.shape)


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, options: tuple) -> Tensor:
    mask = [False, True, False]
    dtype = promoted((gradient, x))
    gradient, x, weight = (t.to(dtype) for t in (gradient, x, weight))
    return torch.ops.aten.convolution_backward(gradient, x, weight, None, *options, mask)[1]


def normalized_product(gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """`gradient * (x - mean) * rstd`: what the weight of a norm sees of each element."""
    return (x - mean).mul_(gradient).mul_(rstd)


def channel_sums(gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, groups: int) -> Tensor:
    """The same of `[n, c, *space]` and statistics `[n, groups]`, summed over positions: `[n, c]`.

    Two sums and their difference, as PyTorch's own kernels do.
    """
    n, c = x.shape[:2]
    gradient, x = (t.reshape(n, c, math.prod(t.shape[2:])) for t in (gradient, x))
    sums = (gradient * x).sum(2), gradient.sum(2)
    product, plain = (t.reshape(n, groups, c // groups) for t in sums)
    mean, rstd = mean.reshape(-1, groups, 1), rstd.reshape(-1, groups, 1)
    return ((product - plain * mean) * rstd).reshape(n, c)


def per_sample_gradients(equation: str, one_hot: int | None, *factors: Tensor) -> Tensor:
    """Contract the factors of a use: `"kso,ksi->oi"` gives `J_u [k, o, i]`.

    With `one_hot` (a size) the first factor holds integers that stand for one-hot vectors.
    """
    inputs, result = equation.split("->")
    terms = inputs.split(",")
    if one_hot is not None:
        ids, values = factors
        k, s = ids.shape
        rows = torch.arange(k, device=ids.device)[:, None] * one_hot + ids
        total = values.new_zeros(k * one_hot, values.shape[-1])
        return total.index_add_(0, rows.reshape(-1), values.reshape(k * s, -1)).view(k, one_hot, -1)
    if len(set(terms)) == 1 and terms[0].startswith("k"):
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor
        summed = [d for d, label in enumerate(terms[0]) if label not in "k" + result]
        product = product.sum(summed) if summed else product
        kept = [label for label in terms[0] if label in "k" + result]
        return product.permute([kept.index(label) for label in "k" + result])
    dtype = promoted(factors)
    return torch.einsum(f"{inputs}->k{result}", *(factor.to(dtype) for factor in factors))


def promoted(factors: Sequence[Tensor]) -> torch.dtype:
    """The type that holds all factors: autocast leaves cotangents in half precision alone."""
    return functools.reduce(torch.promote_types, (factor.dtype for factor in factors))


def weighted_gradient(
    weights: Tensor, shape: list[int], dtype: torch.dtype, *jacobians: Tensor
) -> Tensor:
    """`wᵀ (J_1 + J_2 + ...)` of the parameter's shape, from weights `[k]` and `J_u [k, ...]`."""
    rows = [j.reshape(j.shape[0], math.prod(shape)) for j in jacobians]
    products = [weights.to(r.dtype) @ r for r in rows]
    return sum(products[1:], products[0]).reshape(shape).to(dtype)
