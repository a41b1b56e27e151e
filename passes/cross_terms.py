"""Exact cross terms: what the uses of one parameter contribute together."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from passes.emit import add_up, concatenate
from passes.factors import Contribution, Factors, Use
from passes.operands import Emitter
from passes.pull_back import pull_back
from passes.sites import UseGroup
from passes.views import chain


def add_uses(
    emitter: Emitter,
    values: Mapping[str, Any],
    lowered: list[tuple[UseGroup, Contribution]],
    gradients: Callable[[UseGroup], tuple[fx.Node, ...]],
) -> list[Contribution]:
    """Add the uses of each parameter before they are squared: exact cross terms.

    Uses by like operators are concatenated along the summed positions, which costs no more
    than the uses themselves. Unlike ones are paired, factors with factors, or their per-sample
    gradients are added: the planner chooses. Without factors only the latter is possible.
    `gradients` emits those of a group, one for each of its uses; `values` are nodes by name.
    """
    counts = Counter(use.parameter for _, c in lowered for use in c.uses)
    kept = [c for _, c in lowered if all(counts[u.parameter] == 1 for u in c.uses)]
    parts: dict[str, list[tuple[Use, UseGroup, Contribution, int]]] = {}
    for group, contribution in lowered:
        if any(counts[use.parameter] > 1 for use in contribution.uses):
            for at, use in enumerate(contribution.uses):
                parts.setdefault(use.parameter, []).append((use, group, contribution, at))
    pulled: dict[UseGroup, tuple[fx.Node, ...]] = {}
    for found in parts.values():
        uses = tuple(use for use, *_ in found)
        summands, direct = _summands(emitter, values, found)
        if len(summands) == 1:
            kept.append(Contribution(uses, "sum", summands[0], (), tuple(summands), direct))
            continue
        for _, group, contribution, _ in found:
            if group not in pulled:
                again = contribution.factors is not None
                pulled[group] = gradients(group) if again else contribution.jacobians
        total = add_up(emitter, [pulled[group][at] for _, group, _, at in found])
        every = tuple(summands) or tuple(f for _, _, c, _ in found for f in c.all_factors)
        pairs = tuple(summands)
        kept.append(Contribution(uses, "sum", None, (total,), every, summands=pairs))
    return kept


def _summands(
    emitter: Emitter,
    values: Mapping[str, Any],
    found: list[tuple[Use, UseGroup, Contribution, int]],
) -> tuple[list[Factors], bool]:
    """Factors of the uses of one parameter, like ones concatenated; none if some have none.

    Also whether they are those of the parameter itself, not of a view of it.
    """
    groups = [group for _, group, _, _ in found]
    factors = [c.factors for _, _, c, _ in found if c.factors is not None]
    if len(factors) < len(found):
        return [], False
    if len({chain(group) for group in groups}) == 1:  # the same view of it each time
        return concatenate(emitter, factors), not groups[0].region
    pulled = []
    for group, one in zip(groups, factors):
        if group.region:
            site = group.sites[0].operand
            through = pull_back(emitter, group, site, one, values)
            if through is None:
                return [], False
            one = through[0]
        pulled.append(one)
    if len({len(one.equation.split("->")[1]) for one in pulled}) > 1:
        return [], False
    return concatenate(emitter, pulled), True
