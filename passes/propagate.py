"""Run a captured graph on fake tensors: sizes of every value, and which values carry gradient."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_map_only

from passes.spec import Spec, tensors


def fake_mode_of(gm: fx.GraphModule):
    """The fake mode of the placeholders."""
    return detect_fake_mode([n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"])


@contextmanager
def faking(mode: Any) -> Iterator[None]:
    """Run operators on fake tensors; with symbolic sizes some need Python's dispatcher."""
    with mode, enable_python_dispatcher():
        yield


def propagate(gm: fx.GraphModule, spec: Spec) -> set[fx.Node]:
    """Refresh `meta["val"]` of every node and return the nodes that carry gradient to a parameter.

    Autograd itself decides what carries gradient, so integer results, `detach` and operators with
    a backward of their own need no table.
    """
    carrying: set[fx.Node] = set()

    class Propagator(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            out = super().run_node(n)
            if n.op != "output":
                if any(t.requires_grad for t in tensors(out)):
                    carrying.add(n)
                n.meta["val"] = tree_map_only(torch.Tensor, torch.Tensor.detach, out)
            return out

    inputs = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            bound = spec.inputs[node.name]
            inputs.append(node.meta["val"].detach().requires_grad_(bound.trainable))
    with faking(fake_mode_of(gm)), torch.enable_grad():
        Propagator(gm).run(*inputs, enable_io_processing=False)
    return carrying
