"""Run the captured graph under autograd while its kernels are traced."""

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.fx.traceback import set_current_meta


class Interpretation:
    """Interpret a captured graph; subclasses decide what autograd sees of each node."""

    def __init__(self, gm: fx.GraphModule):
        self.gm = gm
        self.env: dict[fx.Node, Any] = {}

    def forward(self, arguments: list[torch.Tensor]) -> dict[str, Any]:
        """Run all nodes: `losses`, `aux`, `mutated` and the `values` of all of them by name."""
        feed = iter(arguments)
        results: Any = ()
        mutated: Any = {}
        for node in self.gm.graph.nodes:
            with set_current_meta(node):
                if node.op == "placeholder":
                    self.env[node] = next(feed)
                elif node.op == "output":
                    results, mutated = map_arg(node.args[0], lambda n: self.env[n])
                else:
                    self.env[node] = self.node(node)
        return {
            "losses": results[0],
            "aux": tuple(results[1:]),
            "mutated": dict(mutated),
            "values": {n.name: v for n, v in self.env.items()},
        }

    def node(self, node: fx.Node) -> Any:
        """The value of one node."""
        return self.call(node, self.env.__getitem__)

    @staticmethod
    def call(node: fx.Node, read: Any) -> Any:
        """Call the operator of a node on what `read` gives for its operands."""
        return node.target(*map_arg(node.args, read), **map_arg(node.kwargs, read))
