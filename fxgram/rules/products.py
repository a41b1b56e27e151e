"""The Jacobian of a product of tensors, `y = einsum(v, x, ...)`, from its labels."""

import math
from dataclasses import replace

import torch
from torch import fx

from passes import Factors, NotFactored, Operands, SampleAxis

aten = torch.ops.aten
_S = "+"  # label of all summed dims, once flattened
_FOLD = "<>"  # labels of the two halves of a folded sample axis
_NAMES = "oijhwdabcefgmnpqruvxyz"  # labels of the value's dims in the result

Row = tuple[fx.Node, str]  # samples first; the labels of the other dims


def product_factors(
    call: Operands,
    value: str,
    output: str,
    *others: tuple[fx.Node, str],
    cotangent: fx.Node | None = None,
) -> Factors:
    """Factors of `v` in `y[output] = sum v[value] * x[labels] * ...`, one label for each dim.

    Dims of size 1 that broadcast may have any label. `linear`: value "oi", output "bto", other
    (x, "bti"), samples on b, gives `"kso,ksi->oi"`. `cotangent` replaces d loss / dy if it was
    worked on before.
    """
    gradient = call.cotangent() if cotangent is None else cotangent
    axis = call.cotangent_axis()
    sample = None if axis.dim is None else output[axis.dim]
    kept = [label for label, size in zip(value, call.shape, strict=True) if size != 1]
    if sample is not None and sample in kept:
        raise NotFactored
    alone = [(node, labels) for node, labels in others if not call.has_samples(node)]
    others = tuple(pair for pair in others if pair not in alone)
    for pair in alone:
        gradient, output, axis = _absorb(call, gradient, output, axis, pair, value, others)
    rows = [_row(call, gradient, axis, output)]
    for node, labels in others:
        rows.append(_row(call, node, _matching(call, node, labels, axis, sample), labels))
    rows = [_without_ones(call, row) for row in rows]
    rows = [_sum_alone(call, row, [r for r in rows if r is not row], kept) for row in rows]
    summed = [label for label in rows[0][1] if label not in kept]
    if any({label for label in labels if label not in kept} != set(summed) for _, labels in rows):
        raise NotFactored
    if any(all(label not in labels for _, labels in rows) for label in kept):
        raise NotFactored
    names = dict(zip(kept, _NAMES))
    found = [_arrange(call, row, summed, kept) for row in rows]
    terms = ["k" + "".join(names.get(label, "s") for label in labels) for _, labels in found]
    result = "".join(names[label] for label in kept)
    return Factors(f"{','.join(terms)}->{result}", tuple(node for node, _ in found))


def _absorb(
    call: Operands,
    gradient: fx.Node,
    output: str,
    axis: SampleAxis,
    operand: tuple[fx.Node, str],
    value: str,
    others: tuple[tuple[fx.Node, str], ...],
) -> tuple[fx.Node, str, SampleAxis]:
    """Multiply an operand without samples into the cotangent: it has no rows of its own.

    Returns the product, its labels and its sample axis.
    """
    node, labels = operand
    sample = None if axis.dim is None else output[axis.dim]
    wanted = {sample, *value, *(label for _, theirs in others for label in theirs)}
    kept = "".join(dict.fromkeys(x for x in output + labels if x in wanted))
    product = call.emitter.call(torch.einsum, f"{output},{labels}->{kept}", gradient, node)
    return product, kept, axis if sample is None else replace(axis, dim=kept.index(sample))


def _matching(
    call: Operands, node: fx.Node, labels: str, axis: SampleAxis, sample: str | None
) -> SampleAxis:
    """The sample axis of an operand, which must be that of the output."""
    found = call.axis(node)
    if found.dim is not None and (
        labels[found.dim] != sample or (found.outer, found.inner) != (axis.outer, axis.inner)
    ):
        raise NotFactored
    return found


def _row(call: Operands, node: fx.Node, axis: SampleAxis, labels: str) -> Row:
    front = call.samples_first(node, axis)
    if axis.dim is None:
        return front, labels
    before, behind = labels[: axis.dim], labels[axis.dim + 1 :]
    if axis.outer * axis.inner == 1:
        return front, before + behind
    return front, before + _FOLD + behind


def _without_ones(call: Operands, row: Row) -> Row:
    node, labels = row
    ones = [d for d, size in enumerate(node.meta["val"].shape[1:]) if size == 1]
    if ones:
        node = call.emitter.call(aten.squeeze.dims, node, [d + 1 for d in ones])
    return node, "".join(label for d, label in enumerate(labels) if d not in ones)


def _sum_alone(call: Operands, row: Row, others: list[Row], kept: list[str]) -> Row:
    """Sum over dims that neither the value nor another operand has."""
    node, labels = row
    met = {*kept, *(label for _, theirs in others for label in theirs)}
    alone = [d for d, label in enumerate(labels) if label not in met]
    if alone:
        node = call.emitter.call(aten.sum.dim_IntList, node, [d + 1 for d in alone])
    return node, "".join(label for label in labels if label in met)


def _arrange(call: Operands, row: Row, summed: list[str], kept: list[str]) -> Row:
    """Flatten all summed dims into one, `_S`: where they stand together, or else behind `k`."""
    node, labels = row
    if not summed:
        return node, labels
    run = "".join(summed)
    if run not in labels:
        alone = [label for label in kept if label in labels]
        order = [1 + labels.index(label) for label in (*summed, *alone)]
        node = call.emitter.call(aten.permute.default, node, [0, *order])
        labels = run + "".join(alone)
    before, behind = labels.split(run)
    shape = node.meta["val"].shape[1:]
    first, last = len(before), len(before) + len(summed)
    sizes = [*shape[:first], math.prod(shape[first:last]), *shape[last:]]
    if len(summed) != 1:
        node = call.reshape_rows(node, sizes)
    return node, before + _S + behind
