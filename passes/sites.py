"""Which operators the uses of a parameter end in: `UseGroup`, from a graph with split uses."""

from dataclasses import dataclass

from torch import fx

from passes.annotations import note
from passes.use import is_use


@dataclass(frozen=True)
class Site:
    """An operator in which a value without samples meets the samples."""

    node: fx.Node  # the operator, its output batched
    operand: fx.Node  # the value of the parameter there


@dataclass(frozen=True)
class UseGroup:
    """Uses that reach the samples together: through `region`, at all of `sites`.

    `linear(x, w)`: one use, no region, one site. `linear(x, g * v / norm(v))`: the uses of `g` and
    `v`, the arithmetic as region, one site. `h = w @ shared; x + h; x * h`: one use, two sites.
    """

    uses: tuple[fx.Node, ...]
    region: tuple[fx.Node, ...]  # unbatched nodes that carry gradient, uses excluded, in order
    sites: tuple[Site, ...]


def collect_groups(gm: fx.GraphModule) -> tuple[UseGroup, ...]:
    """Group the uses of a graph whose nodes are annotated."""
    unbatched = [n for n in gm.graph.nodes if _is_unbatched(n)]
    group_of = {n: {n} for n in unbatched}
    for node in unbatched:
        for user in node.users:
            if user in group_of and group_of[user] is not group_of[node]:
                merged = group_of[node] | group_of[user]
                for member in merged:
                    group_of[member] = merged
    groups, seen = [], set()
    for node in unbatched:
        if node in seen:
            continue
        seen |= group_of[node]
        members = [n for n in unbatched if n in group_of[node]]
        sites = [Site(user, n) for n in members for user in n.users
                 if note(user).batched and note(user).grad]  # fmt: skip
        uses = tuple(n for n in members if is_use(n))
        if uses and sites:
            groups.append(UseGroup(uses, tuple(n for n in members if not is_use(n)), tuple(sites)))
    return tuple(groups)


def _is_unbatched(node: fx.Node) -> bool:
    found = note(node)
    return node.op == "call_function" and found.grad and not found.batched
