"""Emit what follows from factors alone: per-sample gradients, sums, concatenations."""

from dataclasses import replace

import torch
from torch import fx

from passes.factors import Factors, Kernel
from passes.kernels import per_sample_gradients, promoted
from passes.operands import Emitter

aten = torch.ops.aten


def emit_jacobian(emitter: Emitter, factors: Factors, kernel: str = "factors") -> fx.Node:
    """Emit the per-sample gradients `[k, ...]` of a value, from its factors or by a kernel."""
    for found in factors.kernels:
        if found.name == kernel:
            return found.jacobian
    sizes = factors.sizes()
    labels = "k" + factors.equation.split("->")[1]
    if factors.equation.split("->")[0] == labels:
        return factors.operands[0]
    values = [operand.meta["val"] for operand in factors.operands]
    dtype = promoted(values)
    val = values[-1].new_empty([sizes[label] for label in labels], dtype=dtype)
    return emitter.call(
        per_sample_gradients, factors.equation, factors.one_hot, *factors.operands, val=val
    )


def concatenate(emitter: Emitter, factors: list[Factors]) -> list[Factors]:
    """Merge factors with equal labels along their positions: `s = s1 + s2 + ...`."""
    if len(factors) == 1:
        return factors
    alike: dict[tuple, list[Factors]] = {}
    for one in factors:
        one = _with_names(_with_positions(emitter, one))
        alike.setdefault((one.equation, one.one_hot), []).append(one)
    merged = []
    for several in alike.values():
        if len(several) == 1:
            merged += several
            continue
        terms = several[0].equation.split("->")[0].split(",")
        operands = [
            emitter.call(aten.cat.default, list(parts), term.index("s"))
            for term, parts in zip(terms, zip(*(f.operands for f in several)))
        ]
        merged.append(
            replace(several[0], operands=tuple(operands), kernels=_added(emitter, several))
        )
    return merged


def _added(emitter: Emitter, factors: list[Factors]) -> tuple[Kernel, ...]:
    """The kernels that all of these have: their per-sample gradients are added."""
    found = []
    for name in (kernel.name for kernel in factors[0].kernels):
        nodes = [k.jacobian for f in factors for k in f.kernels if k.name == name]
        if len(nodes) == len(factors):
            found.append(Kernel(name, add_up(emitter, nodes)))
    return tuple(found)


def _with_positions(emitter: Emitter, factors: Factors) -> Factors:
    """`"ko,ki->oi"` of a use without positions, as one with a single position."""
    inputs, result = factors.equation.split("->")
    if "s" in inputs:
        return factors
    operands = [emitter.call(aten.unsqueeze.default, n, 1) for n in factors.operands]
    terms = ["ks" + term[1:] for term in inputs.split(",")]
    return replace(factors, equation=f"{','.join(terms)}->{result}", operands=tuple(operands))


def _with_names(factors: Factors) -> Factors:
    """The same labels for every use of a value: `"ksi,kso->io"` is `"kso,ksi->oi"`."""
    inputs, result = factors.equation.split("->")
    names = str.maketrans(result, "oijhwdabcefgmnpqruvxyz"[: len(result)])
    terms, result = inputs.translate(names).split(","), result.translate(names)
    order = list(range(len(terms)))
    if factors.one_hot is None:
        order.sort(key=lambda at: [result.find(label) for label in terms[at]])
    operands = tuple(factors.operands[at] for at in order)
    equation = f"{','.join(terms[at] for at in order)}->{result}"
    return replace(factors, equation=equation, operands=operands)


def add_up(emitter: Emitter, nodes: list[fx.Node]) -> fx.Node:
    """Sum of tensors of one shape."""
    total = nodes[0]
    for node in nodes[1:]:
        total = emitter.call(aten.add.Tensor, total, node, val=total.meta["val"])
    return total
