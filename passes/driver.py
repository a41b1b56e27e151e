"""Run the passes one after the other: lint and check around each, and keep what each one did."""

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
    snapshot: fx.Graph  # a copy of the graph after the pass
    root: fx.GraphModule

    @property
    def graph(self) -> fx.GraphModule:
        """The graph after the pass, as a module of its own."""
        return fx.GraphModule(self.root, self.snapshot, class_name=self.name)


def copy_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Copy a graph, output included; also the map from the nodes to their copies."""
    copy, mapping = fx.Graph(), {}
    for node in graph.nodes:
        mapping[node] = copy.node_copy(node, lambda n: mapping[n])
    return copy, mapping


def run(
    gm: fx.GraphModule, spec: Spec, passes: Sequence[Pass]
) -> tuple[fx.GraphModule, list[PassRecord]]:
    """Apply the passes in order; the record of each holds the graph that it left."""
    records = []
    for apply in passes:
        before, start = len(gm.graph.nodes), time.perf_counter()
        gm = apply(gm, spec)
        gm.graph.lint()
        milliseconds = 1e3 * (time.perf_counter() - start)
        uses = sum(map(is_use, gm.graph.nodes))
        snapshot, _ = copy_graph(gm.graph)
        records.append(
            PassRecord(
                apply.__name__, before, len(gm.graph.nodes), uses, milliseconds, snapshot, gm
            )
        )
    return gm, records
