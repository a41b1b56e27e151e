"""Choose how the Gramian of each use is contracted: pure functions over sizes.

A cost is a list of steps, each a roofline of multiply-adds and bytes with a number of calls, written
with sympy in the sizes of the labels: `k` samples, `s` positions, the others dims of the parameter.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from passes import Choice, Contribution, Factors
from passes.kernels import windows

aten = torch.ops.aten
_VIEWS = (aten.reshape.default, aten.permute.default, aten.squeeze.dims)
_PAIRS, _ROWS = 8, 128  # most blocks of rows, and least rows of a block, of a Gramian of pairs


@dataclass(frozen=True)
class Device:
    """What one core of a CPU, or a whole GPU, does in a second, and what one call takes."""

    products: float  # multiply-adds of large matrix products
    convolutions: float  # multiply-adds of a convolution's backward
    depthwise: float  # the same, with few channels for each group
    bandwidth: float  # bytes
    scattered: float  # bytes written into per-sample weights, one call for each sample
    blocked: float  # bytes of per-sample weights laid out as groups of one convolution
    call: float  # seconds of a call
    backward_call: float  # seconds of a call of a convolution's backward


# Fitted to single kernels: CPU on cores of an AMD EPYC with AVX-512; the GPU row is an estimate.
DEVICES = {
    "cpu": Device(70e9, 90e9, 6e9, 5e9, 1.5e9, 0.55e9, 4e-6, 45e-6),
    "cuda": Device(20e12, 15e12, 1e12, 2e12, 1e12, 0.5e12, 5e-6, 30e-6),
}


@dataclass(frozen=True)
class Step:
    """Part of a cost, in sizes of labels."""

    name: str
    multiply_adds: sympy.Expr
    bytes: sympy.Expr
    calls: sympy.Expr = sympy.Integer(1)
    unit: str = "products"  # which rate of the device its multiply-adds run at
    stream: str = "bandwidth"  # which rate its bytes run at


@dataclass(frozen=True)
class Cost:
    """What one way of contracting a use takes, for one number of samples."""

    choice: Choice
    multiply_adds: float
    bytes: float  # written and read besides the operands
    held: float  # bytes of per-sample gradients while they exist
    seconds: float  # roofline estimate, the weighted gradient included


def device_of(factors: Factors) -> Device:
    """The row of the table for the operands of a use; a CPU's rates count its threads."""
    kind = factors.operands[-1].meta["val"].device.type
    row = DEVICES.get(kind, DEVICES["cuda"])
    if kind != "cpu":
        return row
    threads = torch.get_num_threads()
    rates = {name: value if "call" in name else value * threads for name, value in vars(row).items()}
    return Device(**rates)


def numbers(sizes: Mapping, samples: int) -> dict[str, int]:
    """Evaluate sizes of labels for a number of samples; only `k`, the rows, depends on it."""
    found = {}
    for label, size in sizes.items():
        if not hasattr(size, "node"):
            found[label] = int(size)
            continue
        expression = size.node.expr
        found[label] = int(expression.subs(dict.fromkeys(expression.free_symbols, samples)))
    return found


@functools.lru_cache(maxsize=None)
def symbol(label: str) -> sympy.Symbol:
    """The size of a label."""
    return sympy.Symbol(label.upper(), positive=True, integer=True)


def _size(labels: str) -> sympy.Expr:
    return sympy.Mul(*(symbol(label) for label in labels))


@functools.lru_cache(maxsize=None)
def steps(equation: str, one_hot: bool, choice: Choice, element: int, made: str, convolution: bool) -> tuple[Step, ...]:
    """The steps of one way to contract a use and to get its weighted gradient.

    `made`: labels of an operand that has to be laid out first (windows of a convolution), or "".
    """
    inputs, result = equation.split("->")
    terms = inputs.split(",")
    every = "".join(dict.fromkeys(inputs.replace(",", "")))
    k, parameter, zero = symbol("k"), _size(result), sympy.Integer(0)
    jacobian, products = element * k * parameter, _size(every)
    operands = sum((element * _size(term) for term in terms), zero)
    if one_hot:
        products, operands = zero, element * _size(terms[1])
    unit = "products"
    if convolution:
        grouped = any(all(label in term for term in terms) for label in result)
        unit = "depthwise" if grouped else "convolutions"
    layout = (Step("columns", zero, 3 * element * _size(made)),) if made else ()
    found: tuple[Step, ...] = ()
    if choice.contraction == "pairs":
        square = (k * symbol("s")) ** 2 if "s" in every else k**2
        shared = [c for c in result if sum(c in term for term in terms) > 1]
        half = sympy.Rational(choice.parts + 1, 2 * choice.parts)
        own = [_size("".join(c for c in t if c not in "ks" + "".join(shared))) for t in terms]
        batches = _size("".join(shared))
        if one_hot:
            own[0] = zero
        pairs = half * square * batches * sum(own, zero)
        moved = half * square * batches * 3 * element * len(terms)
        found += (*layout, Step("rows", zero, 2 * operands))
        found += (Step("pairs", pairs, moved, sympy.Integer(4 * choice.parts)),)
    else:
        if choice.kernel == "calls":
            found += (Step("per-sample gradients", products, jacobian, k, unit, "scattered"),)
        elif choice.kernel == "groups":
            found += (Step("per-sample gradients", products, jacobian, sympy.Integer(2), unit,
                           "blocked"),)  # fmt: skip
        else:
            found += layout
            found += (Step("per-sample gradients", products, operands + 2 * jacobian),)
        found += (Step("Gramian", k**2 * parameter, jacobian),)
    if choice.keep:
        found += (Step("weighted gradient", k * parameter, jacobian),)
    else:
        weighting = 2 * element * _size(terms[-1] if one_hot else terms[0])
        found += (Step("weighted gradient", products, weighting + operands, sympy.Integer(2), unit),)
    return found


@functools.lru_cache(maxsize=None)
def _evaluator(key: tuple) -> tuple:
    """Steps as numbers, from sizes of labels in the order returned."""
    found = steps(*key)
    labels = sorted({label for label in key[0] if label.isalpha()})
    fields = [[s.multiply_adds, s.bytes, s.calls] for s in found]
    return sympy.lambdify([symbol(label) for label in labels], fields, "math"), labels, found


def cost(
    factors: Factors, choice: Choice, samples: int, element: int = 4, device: Device | None = None
) -> Cost:
    """What a choice takes for a use at a number of samples."""
    device = device or device_of(factors)
    sizes = numbers(factors.sizes(), samples)
    key = (factors.equation, factors.one_hot is not None, choice, element, _made(factors), bool(factors.kernels))
    evaluate, labels, found = _evaluator(key)
    values = evaluate(*(sizes[label] for label in labels))
    total, multiply_adds, moved = 0.0, 0.0, 0.0
    for step, (products, size, calls) in zip(found, values):
        rate, stream = getattr(device, step.unit), getattr(device, step.stream)
        call = device.backward_call if step.unit in ("convolutions", "depthwise") else device.call
        if step.stream == "bandwidth":
            total += max(products / rate, size / stream) + calls * call
        else:
            total += products / rate * _narrow(factors, choice, sizes) + size / stream + calls * call
        multiply_adds, moved = multiply_adds + products, moved + size
    held = element * sizes["k"] * math.prod(sizes[c] for c in factors.equation.split("->")[1])
    held = 0 if choice.contraction == "pairs" else held / choice.parts
    return Cost(choice, float(multiply_adds), float(moved), float(held), total)


def _narrow(factors: Factors, choice: Choice, sizes: Mapping[str, int]) -> float:
    """Kernels for many groups are slow with a handful of channels in each."""
    if choice.kernel != "groups":
        return 1.0
    terms = factors.equation.split("->")[0].split(",")
    own = [math.prod(sizes[c] for c in t if c not in "ks" and sum(c in u for u in terms) == 1)
           for t in terms]  # fmt: skip
    return 6.0 if 1 < min(own) and max(own) < 8 * 9 else 1.0


def _made(factors: Factors) -> str:
    """Labels of an operand that has to be laid out: the windows of a convolution; else ""."""
    terms = factors.equation.split("->")[0].split(",")
    for term, operand in zip(terms, factors.operands):
        node = operand
        while node.target in _VIEWS:
            node = node.args[0]
        if node.target is windows:
            return term
    return ""


def candidates(factors: Factors, samples: int, *, keep: bool = True) -> tuple[Cost, ...]:
    """Costs of all ways to contract a use, cheapest first."""
    inputs, result = factors.equation.split("->")
    element = factors.operands[-1].meta["val"].element_size()
    kernels = ("factors", *(k.name for k in factors.kernels))
    choices = [Choice("gradients", kernel, kept) for kernel in kernels for kept in {False, keep}]
    if "," in inputs and result:
        sizes = numbers(factors.sizes(), samples)
        rows = sizes["k"] * sizes.get("s", 1)
        blocks = max(1, min(_PAIRS, rows // _ROWS, sizes["k"]))
        choices.append(Choice("pairs", parts=blocks))
    device = device_of(factors)
    found = [cost(factors, c, samples, element, device) for c in choices]
    return tuple(sorted(found, key=lambda c: c.seconds))


def choose(contribution: Contribution, samples: int) -> Choice:
    """The cheapest way to contract a use at this batch size."""
    if contribution.factors is None:
        return Choice(keep=contribution.method in ("fallback", "region", "sum"))
    return candidates(contribution.factors, samples, keep=contribution.direct)[0].choice


def plan(contributions: Sequence[Contribution], samples: int) -> tuple[Choice, ...]:
    """Choose for all contributions: what is kept of a parameter is kept for all of its uses."""
    choices = [choose(c, samples) for c in contributions]
    while True:
        forgone = {
            use.parameter
            for contribution, choice in zip(contributions, choices)
            if not choice.keep
            for use in contribution.uses
        }
        mixed = [
            at
            for at, (contribution, choice) in enumerate(zip(contributions, choices))
            if choice.keep and any(use.parameter in forgone for use in contribution.uses)
        ]
        if not mixed:
            return tuple(_with_biases(contributions, choices))
        for at in mixed:
            choices[at] = _without_keeping(contributions[at], samples)


def _with_biases(
    contributions: Sequence[Contribution], choices: Sequence[Choice]
) -> list[Choice]:
    """A bias costs nothing next to the pairs of the weight whose output it is added to."""
    at_pairs = {
        c.factors.operands[0]
        for c, choice in zip(contributions, choices)
        if choice.contraction == "pairs" and len(c.factors.operands) == 2 and not c.factors.one_hot
    }
    reused = Counter(use.parameter for c in contributions for use in c.uses)
    found = []
    for contribution, choice in zip(contributions, choices):
        factors = contribution.factors
        is_bias = factors is not None and factors.equation.split("->")[0].count("k") == 1
        alone = all(reused[use.parameter] == 1 for use in contribution.uses)
        if is_bias and alone and factors.operands[0] in at_pairs:
            choice = Choice("bias")
        found.append(choice)
    return found


def _without_keeping(contribution: Contribution, samples: int) -> Choice:
    if contribution.factors is None:
        return Choice()
    return candidates(contribution.factors, samples, keep=False)[0].choice
