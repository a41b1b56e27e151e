"""Which operands carry gradient: seen while autograd runs, written into a graph of kernels."""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
_SEEN = "fxgram_seen"  # in `meta` until it is written: grad mode, and which operands carry gradient


class Edges(TorchDispatchMode):
    """Note on every traced kernel which of its operands carry gradient to the parameters.

    A kernel runs below autograd, on the tensors that autograd sees: one carries gradient if it has
    a history or is one of the parameters. A leaf made by `x.detach().requires_grad_()` has none.
    """

    def __init__(self, parameters: Iterable[Tensor]):
        super().__init__()
        self._parameters = {id(p) for p in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **(kwargs or {}))
        carry = [self.carries(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        seen = torch.is_grad_enabled(), carry
        nodes = mode.tracer.graph.nodes
        last = next(reversed(nodes), None)
        out = func(*args, **(kwargs or {}))
        for node in reversed(nodes):
            if node is last:
                break
            if node.target is func:
                node.meta.setdefault(_SEEN, seen)
        return out

    def carries(self, tensor: Tensor) -> bool:
        """Whether gradients reach a parameter through this tensor."""
        known = tensor.grad_fn is not None or id(tensor) in self._parameters
        return tensor.requires_grad and known


def write_edges(graph: fx.Graph, parameters: set[fx.Node], losses_carry: bool) -> None:
    """Let the graph's own autograd see gradients exactly where they were seen.

    before   a = detach(tanh);  b = tanh_backward(g, a);  c = detach(x);  d = mul(c, w)
    becomes  a = alias(tanh);   b = tanh_backward(g, a);  c = alias(x);   d = mul(detach(c), w)

    Autograd itself detaches what it saves, so a `detach` in the trace tells nothing: its readers
    do, and so do readers of one output of several (the mean and deviation of a norm). Without grad
    mode nothing carries gradient. Values of other kernels always do: one that has no history of its
    own was made inside of another kernel (tangents of zeros are).
    """
    carrying, unsure = set(parameters), set()
    for node in list(graph.nodes):
        operands = [x for x in tree_leaves((node.args, node.kwargs)) if _is_tensor(x)]
        enabled, carry = node.meta.pop(_SEEN, (True, [True] * len(operands)))
        if node.op == "output":
            enabled, carry = losses_carry, [True] + [False] * len(operands)
        elif node.target is aten.detach.default:
            node.target, enabled, carry = aten.alias.default, True, [True]
            unsure.add(node)
        elif node.target is operator.getitem:
            unsure.add(node)
        seen = {
            n for n, does in zip(operands, carry)
            if enabled and n in carrying and (does or n not in unsure)
        }  # fmt: skip
        with graph.inserting_before(node):
            cut = {n: _detached(graph, n) for n in operands if n in carrying and n not in seen}
        node.args = map_arg(node.args, lambda n, cut=cut: cut.get(n, n))
        node.kwargs = map_arg(node.kwargs, lambda n, cut=cut: cut.get(n, n))
        if seen or (node.target is operator.getitem and node.args[0] in carrying):
            carrying.add(node)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), Tensor)


def _detached(graph: fx.Graph, node: fx.Node) -> fx.Node:
    copy = graph.call_function(aten.detach.default, (node,))
    copy.meta = dict(node.meta)
    return copy
