"""Tensor functions that the emitted graphs call: windows of a convolution, Gramians of factors."""

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
    """Lay the receptive fields of a convolution in rows.

    `x [n, g*c, *space]` gives `[n, g, s, c*taps]`, s the output positions, taps the kernel's.
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
    x = x.permute(0, 1, *positions, 2, *taps)
    count = 1
    for d in range(space):
        count *= x.shape[2 + d]
    return x.reshape(n, groups, count, -1)


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


def gramian_of_jacobian(jacobian: Tensor, dtype: torch.dtype) -> Tensor:
    """`J [k, ...]` gives `Re(J Jᴴ) [k, k]`."""
    if jacobian.is_complex():
        jacobian = torch.view_as_real(jacobian.resolve_conj())
    rows = jacobian.reshape(jacobian.shape[0], math.prod(jacobian.shape[1:])).to(dtype)
    return rows @ rows.mT


def _gramian_of_rows(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Pairs of `[k, s, ...]` and `[k, s, ...]` that share no label of the parameter."""
    k, s = a.shape[:2]
    rows = [factor.reshape(k * s, math.prod(factor.shape[2:])).to(dtype) for factor in (a, b)]
    product = (rows[0] @ rows[0].mT) * (rows[1] @ rows[1].mT)
    return product if s == 1 else product.view(k, s, k, s).sum((1, 3))


def gramian_of_pairs(
    equation: str, one_hot: int | None, dtype: torch.dtype, *factors: Tensor
) -> Tensor:
    """The Gramian of `J_u` without `J_u`: `(A Aᵀ) ∘ (B Bᵀ)` summed over pairs of positions.

    `"kso,ksi->oi"`: `sum_st (sum_o B[k,s,o] B[l,t,o]) (sum_i A[k,s,i] A[l,t,i])`.
    """
    inputs, result = equation.split("->")
    terms = inputs.split(",")
    if one_hot is None and len(terms) == 2 and len(result) == len(terms[0] + terms[1]) - 4:
        return _gramian_of_rows(*factors, dtype)
    shared = {label for label in result if sum(label in term for term in terms) > 1}
    mirror = str.maketrans("ks", "lt")
    product, labels = None, ""
    for at, (term, factor) in enumerate(zip(terms, factors)):
        own = "".join(label for label in term if label in "ks" or label in shared)
        both = own + "".join(label for label in own.translate(mirror) if label in "lt")
        if at == 0 and one_hot is not None:
            pair = factor[:, :, None, None] == factor
        else:
            pair = torch.einsum(f"{term},{term.translate(mirror)}->{both}", factor, factor)
        if product is None:
            product, labels = pair.to(dtype), both
        else:
            product = torch.einsum(
                f"{labels},{both}->{_union(labels, both)}", product, pair.to(dtype)
            )
            labels = _union(labels, both)
    return (
        product.sum([d for d, label in enumerate(labels) if label not in "kl"])
        if len(labels) > 2
        else product
    )


def _union(a: str, b: str) -> str:
    return a + "".join(label for label in b if label not in a)
