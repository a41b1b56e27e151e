"""Products of per-loss gradients, one contribution at a time: the Gramian, and its diagonal.

Every function adds to the sum so far, of which the symmetric part counts, and may overwrite it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from passes.kernels import per_sample_gradients


def gramian_of_jacobian(total: Tensor | None, jacobian: Tensor, dtype: torch.dtype) -> Tensor:
    """`J [k, ...]` gives `total + Re(J Jᴴ) [k, k]`; the total is overwritten."""
    if jacobian.is_complex():
        jacobian = torch.view_as_real(jacobian.resolve_conj())
    rows = jacobian.reshape(jacobian.shape[0], math.prod(jacobian.shape[1:])).to(dtype)
    return rows @ rows.mT if total is None else total.addmm_(rows, rows.mT)


def gramian_in_slices(
    total: Tensor | None, equation: str, dtype: torch.dtype, count: int, *factors: Tensor
) -> Tensor:
    """The Gramian from per-sample gradients of which one of `count` slices exists at a time."""
    for parts in _slices(equation, count, factors):
        total = gramian_of_jacobian(total, per_sample_gradients(equation, None, *parts), dtype)
    assert total is not None
    return total


def _slices(equation: str, count: int, factors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Factors of one slice of the parameter after the other, along its longest dim."""
    terms, result = equation.split("->")[0].split(","), equation.split("->")[1]
    label = max(result, key=lambda x: _size(x, terms, factors))
    slices = [
        factor.tensor_split(count, term.index(label)) if label in term else [factor] * count
        for term, factor in zip(terms, factors)
    ]
    return zip(*slices)


def _size(label: str, terms: list[str], factors: Sequence[Tensor]) -> int:
    return next(f.shape[t.index(label)] for t, f in zip(terms, factors) if label in t)


def gramian_of_pairs(
    total: Tensor | None,
    equation: str,
    one_hot: int | None,
    dtype: torch.dtype,
    blocks: int,
    biases: int,
    *factors: Tensor,
) -> Tensor:
    """Add the Gramian of `J_u`, without `J_u`, to a total of which the symmetric part counts.

    It is `(A Aᵀ) ∘ (B Bᵀ)` summed over pairs of positions, for `"kso,ksi->oi"`
    `sum_st (sum_o B[k,s,o] B[l,t,o]) (sum_i A[k,s,i] A[l,t,i])`. Rows are taken in `blocks`, each
    with the columns from its own on, those of later blocks twice. To each of `biases` that are
    added to the same output belongs an input of ones: `A Aᵀ + biases`.
    """
    terms, shared, positions = _labels(equation, factors)
    k = factors[0].shape[0]
    ids = None if one_hot is None else factors[0].reshape(k * positions)
    rows = [
        _rows(term, factor.to(dtype), shared, positions, of_samples=False)
        for at, (term, factor) in enumerate(zip(terms, factors))
        if at or ids is None
    ]
    total = rows[0].new_zeros(k, k) if total is None else total
    step = max(1, -(-k // blocks))
    for start in range(0, k, step):
        stop = min(start + step, k)
        mine, rest = slice(start * positions, stop * positions), slice(start * positions, None)
        product = None if ids is None else (ids[mine, None] == ids[rest]).to(dtype)
        for at, factor in enumerate(rows):
            pair = factor[..., mine, :] @ factor[..., rest, :].mT
            pair = pair + biases if biases and at else pair
            product = pair if product is None else product.mul_(pair)
        if positions > 1:
            sizes = (stop - start, positions, k - start, positions)
            product = product.unflatten(-1, sizes[2:]).unflatten(-3, sizes[:2]).sum((-3, -1))
        product = product.sum(list(range(product.ndim - 2))) if product.ndim > 2 else product
        product[:, stop - start :] *= 2
        total[start:stop, start:] += product
    return total


def cross_gramian(
    total: Tensor,
    dtype: torch.dtype,
    equations: tuple[str, str],
    one_hots: tuple[int | None, int | None],
    *factors: Tensor,
) -> Tensor:
    """Add `J_u J_vᵀ` twice for unlike uses u, v of one parameter: the symmetric part counts.

    Embedding and output projection, `"kso,ksi->oi"` of one-hot `ids` and C, and of (B, A):
    `sum_st B[l,t,ids[k,s]] (C[k,s,:] · A[l,t,:])`, a gather in place of the one-hot.
    """
    return total.add_(_cross(dtype, equations, one_hots, "lt", factors), alpha=2)


def _cross(
    dtype: torch.dtype,
    equations: tuple[str, str],
    one_hots: tuple[int | None, int | None],
    rows: str,
    factors: Sequence[Tensor],
) -> Tensor:
    """Products of two uses; `rows` are the labels of samples and positions of the second."""
    inputs = [equation.split("->")[0].split(",") for equation in equations]
    terms = [*inputs[0], *(term.translate(str.maketrans("ks", rows)) for term in inputs[1])]
    operands: list[Any] = [f.to(dtype) if f.is_floating_point() else f for f in factors]
    for at, one_hot in ((0, one_hots[0]), (len(inputs[0]), one_hots[1])):
        if one_hot is not None and terms[at]:
            _gather(terms, operands, at)
    used = ",".join(term for term in terms if term)
    operands = [f.to(dtype) for f in operands if f is not None]
    return torch.einsum(f"{used}->{'kl' if rows == 'lt' else 'k'}", *operands)


def _gather(terms: list[str], operands: list[Any], at: int) -> None:
    """Replace one-hot rows `ksv` and another factor `ltv` by its entries at the ids, `ltks`."""
    label, rows, ids = terms[at][-1], terms[at][:-1], operands[at]
    other = next(i for i, t in enumerate(terms) if i != at and label in t)
    rest = terms[other].replace(label, "")
    found = operands[other]
    if not found.is_floating_point():  # one-hot as well: ones where the ids are equal
        labels = rest + "".join(c for c in rows if c not in rest)
        found = _aligned(found, rest, labels) == _aligned(ids, rows, labels)
    elif rest[0] == rows[0]:  # of the same samples
        found = found.movedim(terms[other].index(label), 2)
        ids = ids[:, None, :].expand(-1, found.shape[1], -1)
        found, labels = found.gather(2, ids), rest + rows[1]
    else:
        found = found.movedim(terms[other].index(label), -1)[..., ids.reshape(-1)]
        found, labels = found.unflatten(-1, ids.shape), rest + rows
    operands[other], terms[other] = found, labels
    operands[at], terms[at] = None, ""


def _aligned(value: Tensor, labels: str, wanted: str) -> Tensor:
    """Dims of size 1 where a label is missing; both in the same order."""
    return value[tuple(slice(None) if c in labels else None for c in wanted)]


def _labels(equation: str, factors: Sequence[Tensor]) -> tuple[list[str], list[str], int]:
    """Labels of each factor, those of the parameter that several have, number of positions."""
    inputs, result = equation.split("->")
    terms = inputs.split(",")
    shared = [label for label in result if sum(label in term for term in terms) > 1]
    positions = max((f.shape[t.index("s")] for t, f in zip(terms, factors) if "s" in t), default=1)
    return terms, shared, positions


def _rows(
    term: str, factor: Tensor, shared: list[str], positions: int, *, of_samples: bool
) -> Tensor:
    """`[*shared, k * s, own]` of one factor, or `[k, *shared, s, own]` of each sample.

    Dims of size 1 where it lacks a shared label, the same row at all positions where it has none.
    """
    if "s" not in term:
        factor, term = factor.unsqueeze(-1).expand(*factor.shape, positions), term + "s"
    own = [label for label in term if label not in "ks" and label not in shared]
    mine = [label for label in shared if label in term]
    order = ["k", *mine, "s", *own] if of_samples else [*mine, "k", "s", *own]
    moved = factor.permute([term.index(label) for label in order])
    sizes = dict(zip(order, moved.shape))
    lead = [sizes.get(label, 1) for label in shared]
    rows = [sizes["k"], *lead, sizes["s"]] if of_samples else [*lead, sizes["k"] * sizes["s"]]
    return moved.reshape(*rows, math.prod(sizes[c] for c in own))


def norms_of_jacobian(total: Tensor | None, jacobian: Tensor, dtype: torch.dtype) -> Tensor:
    """Add the squared norms `[k]` of `J [k, ...]` to a total."""
    rows = jacobian.reshape(jacobian.shape[0], math.prod(jacobian.shape[1:]))
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj()).flatten(1)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
    return norms.square() if total is None else total.addcmul_(norms, norms)


def norms_in_slices(
    total: Tensor | None, equation: str, dtype: torch.dtype, count: int, *factors: Tensor
) -> Tensor:
    """The same from per-sample gradients of which one of `count` slices exists at a time."""
    for parts in _slices(equation, count, factors):
        total = norms_of_jacobian(total, per_sample_gradients(equation, None, *parts), dtype)
    assert total is not None
    return total


def norms_of_pairs(
    total: Tensor | None,
    equation: str,
    one_hot: int | None,
    dtype: torch.dtype,
    blocks: int,
    biases: int,
    *factors: Tensor,
) -> Tensor:
    """Add the squared norms of `J_u`, without `J_u`, for `blocks` of samples after each other.

    `"kso,ksi->oi"`: `sum_st (sum_o B[k,s,o] B[k,t,o]) (sum_i A[k,s,i] A[k,t,i])`.
    """
    terms, shared, positions = _labels(equation, factors)
    found = []
    for parts in zip(*(factor.tensor_split(blocks) for factor in factors)):
        product = None
        for at, (term, factor) in enumerate(zip(terms, parts)):
            if at == 0 and one_hot is not None:
                product = (factor[:, :, None] == factor[:, None]).to(dtype)
                continue
            rows = _rows(term, factor.to(dtype), shared, positions, of_samples=True)
            pair = rows @ rows.mT
            pair = pair + biases if biases and at else pair
            product = pair if product is None else product.mul_(pair)
        found.append(product.flatten(1).sum(1))
    norms = torch.cat(found) if len(found) > 1 else found[0]
    return norms if total is None else total + norms


def cross_norms(
    total: Tensor,
    dtype: torch.dtype,
    equations: tuple[str, str],
    one_hots: tuple[int | None, int | None],
    *factors: Tensor,
) -> Tensor:
    """Add twice the inner products of each sample's gradients of unlike uses."""
    return total.add_(_cross(dtype, equations, one_hots, "kt", factors), alpha=2)


@dataclass(frozen=True)
class Product:
    """The kernels that add one contribution to a product of the per-loss gradients."""

    of_jacobian: Callable
    in_slices: Callable
    of_pairs: Callable
    of_unlike: Callable
    dims: int  # of the result: a matrix of rows and columns, or one number for each row


PRODUCTS = {
    "gramian": Product(
        gramian_of_jacobian, gramian_in_slices, gramian_of_pairs,
        cross_gramian, 2,
    ),
    "diagonal": Product(
        norms_of_jacobian, norms_in_slices, norms_of_pairs,
        cross_norms, 1,
    ),
}  # fmt: skip
