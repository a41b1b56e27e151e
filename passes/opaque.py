"""Python callables as targets of nodes: autograd alone looks inside of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


@dataclass(frozen=True)
class _Hole:
    """Stands in a call for what the graph hands over."""

    kind: str


_TENSOR, _SIZE = _Hole("tensor"), _Hole("size")


class Opaque:
    """`function(*args)` as an operator `(tensors, sizes) -> tensors`.

    Custom autograd functions are recorded in this way: running the node runs their own forward,
    and the backward is theirs as well.
    """

    def __init__(self, name: str, function: Callable, args: tuple):
        self.__name__, self._function = name, function
        self.draws = False  # whether it draws random numbers
        leaves, self._tree = tree_flatten(args)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.sizes = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
        self._leaves = [_hole(leaf) for leaf in leaves]
        self._result: tuple[list[Any], TreeSpec] | None = None

    def __call__(self, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Run the function; keep what its result looks like."""
        leaves = _filled(self._leaves, {_TENSOR: iter(tensors), _SIZE: iter(sizes)})
        found, tree = tree_flatten(self._function(*tree_unflatten(leaves, self._tree)))
        self._result = [_hole(leaf) for leaf in found], tree
        return [leaf for leaf in found if isinstance(leaf, Tensor)]

    def result(self, tensors: list[Tensor]) -> Any:
        """What the function returned, with these tensors in it."""
        assert self._result is not None, "the call has not run"
        leaves, tree = self._result
        return tree_unflatten(_filled(leaves, {_TENSOR: iter(tensors)}), tree)


def _hole(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return _TENSOR
    return _SIZE if isinstance(leaf, torch.SymInt) else leaf


def _filled(leaves: list[Any], feed: dict[_Hole, Iterator]) -> list[Any]:
    return [next(feed[leaf]) if isinstance(leaf, _Hole) else leaf for leaf in leaves]


class Hooked:
    """The identity, whose gradient a tensor hook sees and may change."""

    def __init__(self, hook: Callable[[Tensor], Tensor | None]):
        self.__name__, self._hook = "hooked", hook

    def __call__(self, tensor: Tensor) -> Tensor:
        alias = tensor.view_as(tensor)
        if alias.requires_grad:
            alias.register_hook(self._hook)
        return alias


def place_hooks(graph: fx.Graph) -> None:
    """Let everything that reads a hooked value read it behind its hooks.

    before   h = hooked(y);  z = mul(y, 2)
    becomes  h = hooked(y);  z = mul(h, 2)           the hook sees the whole gradient of y

    Of several hooks the first one is the first to see the gradient, so it is the last node.
    """
    for node in [n for n in reversed(graph.nodes) if isinstance(n.target, Hooked)]:
        (value,) = node.all_input_nodes
        after = value.next
        while after.op == "placeholder":
            after = after.next
        if after is not node:
            after.prepend(node)
        value.replace_all_uses_with(node, delete_user_cb=lambda user, node=node: user is not node)
