"""Choose how the Gramian of each use is contracted: pure functions over sizes.

A cost is a list of steps, each a roofline of multiply-adds and bytes with a number of calls, written
with sympy in the sizes of the labels: `k` samples, `s` positions, the others dims of the parameter.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch import fx

from passes import Choice, Contribution, Factors
from passes.kernels import windows

aten = torch.ops.aten
_VIEWS = (aten.reshape.default, aten.permute.default, aten.squeeze.dims)
_PAIRS, _ROWS = 8, 80  # most blocks of rows, and least rows of a block, of a Gramian of pairs
_SLICE = 2**24  # bytes of per-sample gradients that an allocator hands out again and again
_FRESH = 2**25  # larger blocks come from the system each time, page by page


@dataclass(frozen=True)
class Device:
    """What one core of a CPU, or a whole GPU, does in a second, and what one call takes."""

    products: float  # multiply-adds of large matrix products
    convolutions: float  # multiply-adds of a convolution's backward
    depthwise: float  # the same, with few channels for each group
    bandwidth: float  # bytes
    fresh: float  # bytes written into blocks that come from the system
    scattered: float  # bytes written into per-sample weights, one call for each sample
    blocked: float  # bytes of per-sample weights laid out as groups of one convolution
    call: float  # seconds of a call
    backward_call: float  # seconds of a call of a convolution's backward


# Fitted to single kernels: CPU on cores of an AMD EPYC with AVX-512; the GPU row is an estimate.
DEVICES = {
    "cpu": Device(50e9, 100e9, 6e9, 16e9, 1e9, 3e9, 0.55e9, 4e-6, 45e-6),
    "cuda": Device(20e12, 15e12, 1e12, 2e12, 2e12, 1e12, 0.5e12, 5e-6, 30e-6),
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
    held: float  # bytes that exist at once while it is contracted
    seconds: float  # roofline estimate, the weighted gradient included


@dataclass(frozen=True)
class Budget:
    """What a plan may take beyond the ordinary forward and backward."""

    bytes: float  # of cotangents and per-sample gradients, kept or not
    retain: str = "auto"  # "cotangents", "recompute", or what fits
    strict: bool = False  # whether to refuse rather than to exceed `bytes`


@dataclass(frozen=True)
class Plan:
    """How every contribution is contracted, and where the weighted gradient comes from."""

    choices: tuple[Choice, ...]
    recompute: bool = False


class OverBudget(Exception):
    """No plan fits; `least` bytes are the least that one takes."""

    def __init__(self, least: float):
        super().__init__(least)
        self.least = least


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
            calls = sympy.Integer(2 * choice.parts)
            found += (Step("per-sample gradients", products, operands + 2 * jacobian, calls),)
        found += (Step("Gramian", k**2 * parameter, jacobian, sympy.Integer(choice.parts)),)
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
    held = _held(factors, choice, sizes, element)
    if held > _FRESH and choice.kernel == "factors":
        total += held / device.fresh
    return Cost(choice, float(multiply_adds), float(moved), held, total)


def _held(factors: Factors, choice: Choice, sizes: Mapping[str, int], element: int) -> float:
    """Bytes that exist at once: per-sample gradients, or products of pairs of positions."""
    inputs, result = factors.equation.split("->")
    if choice.contraction != "pairs":
        jacobian = element * sizes["k"] * math.prod(sizes[c] for c in result)
        return jacobian / choice.parts
    shared = [c for c in result if sum(c in term for term in inputs.split(",")) > 1]
    rows = sizes["k"] * sizes.get("s", 1)
    return 2 * element * rows * rows * math.prod(sizes[c] for c in shared) / choice.parts


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


def candidates(
    factors: Factors, samples: int, *, keep: bool = True, limit: float = math.inf
) -> tuple[Cost, ...]:
    """Costs of all ways to contract a use, cheapest first; those within `limit` bytes, if any."""
    inputs, result = factors.equation.split("->")
    element = factors.operands[-1].meta["val"].element_size()
    sizes, device = numbers(factors.sizes(), samples), device_of(factors)
    kernels = ("factors", *(k.name for k in factors.kernels))
    choices = [Choice("gradients", kernel, kept) for kernel in kernels for kept in {False, keep}]
    if factors.one_hot is None and "," in inputs:
        longest = max((sizes[c] for c in result), default=1)
        whole = _held(factors, Choice("gradients"), sizes, element)
        for size in (limit, _SLICE):
            parts = min(longest, math.ceil(whole / size)) if size < whole else 1
            if parts > 1:
                choices.append(Choice("gradients", parts=parts))
    if "," in inputs and result:
        rows = sizes["k"] * sizes.get("s", 1)
        blocks = max(1, min(_PAIRS, rows // _ROWS, sizes["k"]))
        square = _held(factors, Choice("pairs"), sizes, element)
        if square > limit:
            blocks = min(sizes["k"], max(blocks, math.ceil(square / limit)))
        choices.append(Choice("pairs", parts=blocks))
    found = [cost(factors, c, samples, element, device) for c in dict.fromkeys(choices)]
    fitting = [c for c in found if c.held <= limit] or [min(found, key=lambda c: c.held)]
    return tuple(sorted(fitting, key=lambda c: c.seconds))


Candidates = Callable[..., tuple[Cost, ...]]


def plan(
    contributions: Sequence[Contribution],
    samples: int,
    budget: Budget,
    candidates: Candidates = candidates,
) -> Plan:
    """Choose for all contributions, within a budget.

    Per-sample gradients are kept where that pays, those that save least for their size last; then
    cotangents are kept; if these do not fit either, a second backward makes them again.

    Raises: OverBudget if the budget is strict and nothing fits.
    """
    if budget.retain != "recompute":
        found = _kept(contributions, samples, budget, candidates)
        if found is not None:
            return Plan(_with_biases(contributions, found))
    found = [_first(candidates, c, samples, False, budget.bytes) for c in contributions]
    least = max((_bytes(c, choice, samples) for c, choice in zip(contributions, found)), default=0)
    if budget.strict and least > budget.bytes:
        raise OverBudget(least)
    return Plan(_with_biases(contributions, found), recompute=budget.retain != "cotangents")


def within(
    limit: float,
    contributions: Sequence[Contribution],
    samples: int,
    retain: str,
    excess: Callable[[Plan], float],
    candidates: Candidates = candidates,
) -> Plan:
    """The plan whose modules stay within a limit, as `excess` finds them to.

    Raises: OverBudget if there is none, with what the one that takes least takes.
    """
    room = limit
    while room > 0:
        try:
            found = plan(contributions, samples, Budget(room, retain, strict=True), candidates)
        except OverBudget:
            break
        over = excess(found) - limit
        if over <= 0:
            return found
        room -= max(over, limit / 4)  # each try makes new modules
    budgets = [Budget(1, "cotangents"), Budget(1, "recompute")]
    if retain != "auto":
        budgets = [Budget(1, retain)]
    found = min((plan(contributions, samples, b, candidates) for b in budgets), key=excess)
    least = excess(found)
    if least > limit:
        raise OverBudget(max(1, least))
    return found


def _kept(
    contributions: Sequence[Contribution], samples: int, budget: Budget, candidates: Candidates
) -> list[Choice] | None:
    """Choices that keep cotangents or per-sample gradients; None if the budget is too small."""
    kept = [_first(candidates, c, samples, True, budget.bytes) for c in contributions]
    plain = [_first(candidates, c, samples, False, budget.bytes) for c in contributions]
    together = _together(contributions)
    for members in together:  # what is kept of a parameter is kept for all of its uses
        if not all(kept[at].keep for at in members):
            for at in members:
                kept[at] = plain[at]

    def extra(choices: Sequence[Choice]) -> float:
        pairs = list(zip(contributions, choices))
        held = sum(_bytes(c, choice, samples) for c, choice in pairs if choice.keep)
        nodes = {n for c, choice in pairs if not choice.keep for n in _cotangents(c)}
        transient = max((_bytes(c, ch, samples) for c, ch in pairs if not ch.keep), default=0)
        return held + sum(_nbytes(n, samples) for n in nodes) + transient

    order = sorted(
        (members for members in together if kept[members[0]].keep),
        key=lambda members: -sum(_bytes(contributions[at], kept[at], samples) for at in members),
    )
    choices = list(kept)
    for members in order:
        if extra(choices) <= budget.bytes:
            break
        for at in members:
            choices[at] = plain[at]
    fits = extra(choices) <= budget.bytes
    return choices if fits or (budget.retain == "cotangents" and not budget.strict) else None


def _together(contributions: Sequence[Contribution]) -> list[list[int]]:
    """Contributions that share a parameter."""
    groups: list[list[int]] = []
    owner: dict[str, list[int]] = {}
    for at, contribution in enumerate(contributions):
        mine = [at]
        for use in contribution.uses:
            other = owner.get(use.parameter)
            if other is not None and other is not mine:
                mine += [m for m in other if m not in mine]
                groups = [g for g in groups if g is not other]
                owner.update({name: mine for name, g in owner.items() if g is other})
            owner[use.parameter] = mine
        groups.append(mine)
    return groups


def _first(
    candidates: Candidates, contribution: Contribution, samples: int, keep: bool, limit: float
) -> Choice:
    """The cheapest way to contract a use within a limit; the one that takes least if none is."""
    factors = contribution.factors
    if factors is None:
        return Choice(keep=keep)
    keep = keep and contribution.direct
    room = limit - _copied(factors, Choice(), samples)
    found = [c.choice for c in candidates(factors, samples, keep=keep, limit=max(room, 1))]
    fitting = [c for c in found if _bytes(contribution, c, samples) <= limit]
    if fitting:
        return fitting[0]
    found += [c.choice for c in candidates(factors, samples, keep=keep)]
    return min(found, key=lambda choice: _bytes(contribution, choice, samples))


def _bytes(contribution: Contribution, choice: Choice, samples: int) -> float:
    """Bytes that a contribution holds at once."""
    factors = contribution.factors
    if factors is None:
        return sum(_nbytes(n, samples) for n in contribution.jacobians)
    element = factors.operands[-1].meta["val"].element_size()
    held = _held(factors, choice, numbers(factors.sizes(), samples), element)
    return held if choice.keep else held + _copied(factors, choice, samples)


def _copied(factors: Factors, choice: Choice, samples: int) -> float:
    """Bytes of operands that are laid out anew while a use is contracted."""
    if choice.kernel == "calls" or "," not in factors.equation:
        return 0
    if choice.kernel == "groups":  # weights for every sample, and in blocks of channels
        element = factors.operands[-1].meta["val"].element_size()
        return 2 * _held(factors, choice, numbers(factors.sizes(), samples), element)
    made = _made(factors)  # windows are made, and then put in rows
    terms = factors.equation.split("->")[0].split(",")
    return sum(
        (2 if term == made else 1) * _nbytes(operand, samples)
        for term, operand in zip(terms, factors.operands)
    )


def _cotangents(contribution: Contribution) -> list[fx.Node]:
    """The cotangents that the ordinary weight gradient of a contribution reads again."""
    found = []
    for factors in contribution.all_factors:
        node = factors.operands[-1 if factors.one_hot is not None else 0]
        while node.meta.get("emitted") and node.all_input_nodes:
            node = node.all_input_nodes[0]
        found.append(node)
    return found


def _nbytes(node: fx.Node, samples: int) -> int:
    value = node.meta["val"]
    sizes = numbers(dict(enumerate(value.shape)), samples)
    return math.prod(sizes.values()) * value.element_size()


def _with_biases(
    contributions: Sequence[Contribution], choices: Sequence[Choice]
) -> tuple[Choice, ...]:
    """A bias costs nothing next to the pairs of the weight whose output it is added to."""
    at_pairs = {
        c.factors.operands[0]
        for c, choice in zip(contributions, choices)
        if c.factors and choice.contraction == "pairs" and c.factors.equation.count("k") == 2
    }
    found = []
    for members in _together(contributions):
        factors = contributions[members[0]].factors
        if len(members) > 1 or factors is None or factors.equation.count("k") != 1:
            found += [(at, choices[at]) for at in members]
        elif factors.operands[0] in at_pairs:
            found.append((members[0], Choice("bias")))
        else:
            found.append((members[0], choices[members[0]]))
    return tuple(choice for _, choice in sorted(found, key=lambda pair: pair[0]))
