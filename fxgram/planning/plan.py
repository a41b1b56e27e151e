"""Choose how the Gramian of each use is contracted, within a budget: pure functions over sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from fxgram.planning.costs import (
    Cost,
    candidates,
    candidates_at,
    device_of,
    held_at,
    numbers,
)
from fxgram.planning.costs import held as _held
from fxgram.planning.steps import Product, made
from passes import Choice, Contribution, Factors, nbytes


@dataclass(frozen=True)
class Budget:
    """What a plan may take beyond the ordinary forward and backward."""

    bytes: float  # of cotangents and per-sample gradients, kept or not
    retain: str = "auto"  # "cotangents", "recompute", or what fits
    strict: bool = False  # whether to refuse rather than to exceed `bytes`
    freed: float = (
        0.0  # bytes of activations that no weight gradient reads: cotangents replace them
    )


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
    retain: str,
    excess: Callable[[Plan], float],
    make: Callable[[Budget], Plan],
) -> Plan:
    """The plan that `make` gives whose modules stay within a limit, as `excess` finds them to.

    Raises: OverBudget if there is none, with what the one that takes least takes.
    """
    room = limit
    while room > 0:
        try:
            found = make(Budget(room, retain, strict=True))
        except OverBudget:
            break
        over = excess(found) - limit
        if over <= 0:
            return found
        room -= max(over, limit / 4)  # each try makes new modules
    retained = ("cotangents", "recompute") if retain == "auto" else (retain,)
    found = min((make(Budget(1, kind)) for kind in retained), key=excess)
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
        kept_for_backward = held + sum(nbytes(n.meta["val"], samples) for n in nodes)
        return max(0.0, kept_for_backward - budget.freed) + transient

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
    if contribution.summands:
        return _of_unlike_uses(contribution, samples, keep, limit)
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


def _of_unlike_uses(contribution: Contribution, samples: int, keep: bool, limit: float) -> Choice:
    """Pairs of all uses of a parameter with each other, or their per-sample gradients added.

    Either costs what one use with all of their positions would.
    """
    product, sizes = _joined(contribution, samples)
    device = device_of(contribution.summands[0])
    found = [
        cost
        for cost in candidates_at(product, sizes, device, keep=keep, limit=limit)
        if cost.choice.contraction == "pairs" or cost.choice.parts == 1
    ]
    fitting = [c for c in found if c.held <= limit]
    return (fitting or sorted(found, key=lambda c: c.held))[0].choice


def _joined(contribution: Contribution, samples: int) -> tuple[Product, dict[str, int]]:
    """The uses of one parameter as a product without kernels, at all of their positions."""
    every = [numbers(f.sizes(), samples) for f in contribution.summands]
    at = next(i for i, f in enumerate(contribution.summands) if f.one_hot is None)
    product = replace(Product.of(contribution.summands[at]), kernels=(), made="")
    return product, {**every[at], "s": sum(sizes["s"] for sizes in every)}


def _bytes(contribution: Contribution, choice: Choice, samples: int) -> float:
    """Bytes that a contribution holds at once."""
    factors = contribution.factors
    if contribution.summands and choice.contraction == "pairs":
        product, sizes = _joined(contribution, samples)
        return held_at(product, choice, sizes)
    if factors is None:
        return sum(nbytes(n.meta["val"], samples) for n in contribution.jacobians)
    held = _held(factors, choice, numbers(factors.sizes(), samples))
    return held if choice.keep else held + _copied(factors, choice, samples)


def _copied(factors: Factors, choice: Choice, samples: int) -> float:
    """Bytes of operands that are laid out anew while a use is contracted."""
    if choice.kernel == "calls" or "," not in factors.equation:
        return 0
    if choice.kernel == "groups":  # weights for every sample, and in blocks of channels
        return 2 * _held(factors, choice, numbers(factors.sizes(), samples))
    laid_out = made(factors)  # windows are made, and then put in rows
    terms = factors.equation.split("->")[0].split(",")
    return sum(
        (2 if term == laid_out else 1) * nbytes(operand.meta["val"], samples)
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
