"""Run the passes one after the other: lint and check around each, and keep what each one did."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx

from passes.spec import Spec
from passes.use import is_use

Pass = Callable[[fx.GraphModule, Spec], fx.GraphModule]


@dataclass(frozen=True)
class PassRecord:
    """One row of `step.passes`."""

    name: str
    nodes_before: int
    nodes_after: int
    uses: int  # `use` nodes after the pass
    milliseconds: float
    snapshot: fx.Graph | None  # a copy of the graph after the pass, if it is kept
    root: fx.GraphModule  # what the copy is of; if there is none, what the passes started from
    again: Callable[[fx.GraphModule], fx.GraphModule]  # runs the passes up to this one

    @property
    def graph(self) -> fx.GraphModule:
        """The graph after the pass, as a module of its own."""
        if self.snapshot is None:
            return self.again(self.root)
        return fx.GraphModule(self.root, self.snapshot, class_name=self.name)


def copy_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Copy a graph, output included; also the map from the nodes to their copies."""
    copy, mapping = fx.Graph(), {}
    for node in graph.nodes:
        mapping[node] = copy.node_copy(node, lambda n: mapping[n])
    return copy, mapping


def run(
    gm: fx.GraphModule, spec: Spec, passes: Sequence[Pass], keep: bool = True
) -> tuple[fx.GraphModule, list[PassRecord]]:
    """Apply the passes in order; the record of each can show the graph that it left.

    Without `keep` (where graphs are large) a record runs the passes again to show it: the first of
    them must leave its argument as it is.
    """
    records = []
    source = gm
    for at, apply in enumerate(passes):
        before, start = len(gm.graph.nodes), time.perf_counter()
        gm = apply(gm, spec)
        gm.graph.lint()
        milliseconds = 1e3 * (time.perf_counter() - start)
        uses = sum(map(is_use, gm.graph.nodes))
        snapshot, root = (copy_graph(gm.graph)[0], gm) if keep else (None, source)
        again = functools.partial(_apply, spec=spec, passes=tuple(passes[: at + 1]))
        after = len(gm.graph.nodes)
        records.append(
            PassRecord(apply.__name__, before, after, uses, milliseconds, snapshot, root, again)
        )
    return gm, records


def _apply(gm: fx.GraphModule, spec: Spec, passes: tuple[Pass, ...]) -> fx.GraphModule:
    for apply in passes:
        gm = apply(gm, spec)
    return gm
