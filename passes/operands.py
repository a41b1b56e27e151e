"""What a rule sees of the operator at a site: arguments, cotangents, and how to emit nodes."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from passes.annotations import SampleAxis
from passes.clean import call_key
from passes.propagate import fake_mode_of, faking

aten = torch.ops.aten
_STRIDED = (aten.view.default, aten._unsafe_view.default)  # a later batch may have other strides


class NotFactored(Exception):
    """The rule does not hold for this call; the fallback takes over."""


class Emitter:
    """Append nodes to a graph of kernels, each with the fake value that tells its size."""

    def __init__(self, gm: fx.GraphModule):
        self.graph, self.mode = gm.graph, fake_mode_of(gm)
        *_, self.output = gm.graph.nodes
        self._emitted: dict[Any, fx.Node] = {}

    def call(
        self, target: Any, *args: Any, val: torch.Tensor | None = None, **kwargs: Any
    ) -> fx.Node:
        """Emit `target(*args, **kwargs)`, once; `val` spares running it on fake tensors."""
        key = call_key(target, args, kwargs)
        if key is not None and key in self._emitted:
            return self._emitted[key]
        with self.graph.inserting_before(self.output):
            node = self.graph.call_function(target, args, kwargs)
        if val is None:
            fake = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with faking(self.mode), torch.no_grad():
                val = target(*fake[0], **fake[1])
        node.meta.update(val=val, emitted=True)
        if key is not None:
            self._emitted[key] = node
        return node

    def interleave(self, columns: list[fx.Node]) -> fx.Node:
        """Rows of T losses a sample: T times `[K, ...]` gives `[K * T, ...]`, row `k * T + t`."""
        if len(columns) == 1:
            return columns[0]
        if all(node is columns[0] for node in columns):
            return self.call(aten.repeat_interleave.self_int, columns[0], len(columns), 0)
        return self.call(aten.flatten.using_ints, self.call(aten.stack.default, columns, 1), 0, 1)


class Operands:
    """The call `op(...)` at one site, with nodes of the graph of kernels in place of values."""

    def __init__(
        self,
        emitter: Emitter,
        op: Any,
        arguments: dict[str, Any],
        axes: dict[fx.Node, SampleAxis | None],
        cotangents: tuple[fx.Node | None, ...],
        output_axes: tuple[SampleAxis | None, ...],
        value: fx.Node,
    ):
        self.emitter, self.op, self.arguments, self.value = emitter, op, arguments, value
        self._axes, self._cotangents, self._output_axes = axes, cotangents, output_axes
        self._shape: tuple[int, ...] | None = None

    def __getitem__(self, name: str) -> Any:
        """The value of an argument, by its name in the operator's schema (default included)."""
        return self.arguments[name]

    @property
    def shape(self) -> Sequence[int]:
        """Shape of `value`, the value of the parameter at the site."""
        return self._shape or self.value.meta["val"].shape

    def viewed(self, shape: Sequence[int], like: fx.Node, *nodes: fx.Node) -> "Operands":
        """The call with the value in another shape, and nodes whose samples sit as in `like`."""
        other = copy.copy(self)
        other._shape = tuple(shape)
        other._axes = {**self._axes, **dict.fromkeys(nodes, self._axes.get(like))}
        return other

    @property
    def is_whole(self) -> bool:
        """Whether there is one sample, and no axis for it."""
        return self._output_axes[0] is not None and self._output_axes[0].dim is None

    def cotangent(self, index: int = 0) -> fx.Node:
        """D loss / d output, with the output's shape."""
        found = self._cotangents[index]
        if found is None:
            raise NotFactored
        return found

    def cotangent_axis(self, index: int = 0) -> SampleAxis:
        """Where the samples sit in the cotangent."""
        return self._known(self._output_axes[index])

    def axis(self, node: fx.Node) -> SampleAxis:
        """Where the samples sit in an argument."""
        return self._known(self._axes.get(node))

    def has_samples(self, node: fx.Node) -> bool:
        """Whether an argument holds a part for each sample."""
        return self._axes.get(node) is not None

    def rows(self, node: fx.Node, axis: SampleAxis, keep: int) -> fx.Node:
        """Samples first, the last `keep` dims last: `[20, K, d]` gives `[K, 20, d]` for keep 1.

        All other dims, and the two halves of a folded one, are flattened into positions `s`.
        """
        front = self.samples_first(node, axis, keep)
        shape = front.meta["val"].shape
        kept = list(shape[len(shape) - keep :])
        positions = 1
        for size in shape[1 : len(shape) - keep]:
            positions *= size
        return self.reshape_rows(front, [positions, *kept])

    def samples_first(self, node: fx.Node, axis: SampleAxis, keep: int = 0) -> fx.Node:
        """Move the samples to the front, unfolded: `[2*K, d]` with outer 2 gives `[K, 2, d]`."""
        call, value = self.emitter.call, node.meta["val"]
        if axis.dim is None:
            return call(aten.unsqueeze.default, node, 0)
        if axis.dim >= value.ndim - keep:
            raise NotFactored
        dim = axis.dim
        if axis.outer * axis.inner > 1:
            shape = list(value.shape)
            folded = [axis.outer, -1, axis.inner]
            node = call(aten.reshape.default, node, [*shape[:dim], *folded, *shape[dim + 1 :]])
            dim += 1
        return node if dim == 0 else call(torch.movedim, node, dim, 0)

    def trace(self, function: Callable[..., torch.Tensor], *nodes: fx.Node) -> fx.Node:
        """Emit the kernels that `function` runs on the values of `nodes`, autograd included."""
        fakes = [n.meta["val"] for n in nodes]
        with faking(self.emitter.mode), torch.enable_grad():
            traced = make_fx(function, tracing_mode="real")(*fakes)
        placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
        env = dict(zip(placeholders, nodes, strict=True))
        for node in traced.graph.nodes:
            if node.op == "call_function":
                args = fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
                target = aten.reshape.default if node.target in _STRIDED else node.target
                val = node.meta["val"]
                env[node] = self.emitter.call(target, *args[0], val=val, **args[1])
            elif node.op == "output":
                return env[node.args[0]]
        raise AssertionError("a graph ends in its output")

    def reshape_rows(self, node: fx.Node, sizes: list[int]) -> fx.Node:
        """Reshape all but the leading dim, the samples, for every number of them."""
        rows: Any = 1 if self.is_whole else -1
        if 0 in sizes:  # -1 can't be told from nothing
            rows = self.emitter.call(aten.sym_size.int, node, 0)
        return self.emitter.call(aten.reshape.default, node, [rows, *sizes])

    @staticmethod
    def _known(axis: SampleAxis | None) -> SampleAxis:
        if axis is None:
            raise NotFactored
        return axis
