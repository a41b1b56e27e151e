"""`differentiate`: forward, cotangents and weighted gradient in one graph of kernels."""

import re
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_map_only

from passes.annotations import KEY, SampleAxis, facts, note
from passes.functionalize import functionalize
from passes.interpretation import Interpretation
from passes.loss_by_loss import LossByLoss
from passes.propagate import fake_mode_of, faking
from passes.sites import UseGroup
from passes.spec import PassError, Spec, tensors
from passes.targets import has_foreign_backward
from passes.use import is_use, use

_NO_DERIVATIVE = "derivative for .* is not implemented|differentiate twice|once_differentiable"
SEEDS, WEIGHTS = "row_seeds", "row_weights"  # the placeholders that this pass adds, both [K]


def differentiate(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Trace the graph and PyTorch's own autograd through it, once for the whole batch.

    At a site `y = op(x, v)` the value `v` of the parameter is cut off, so the backward from the
    losses yields the cotangent of every `y` and no weight gradient. The weighted gradient is the
    backward of `op` with `x` cut off instead, from `weights[k] * cotangent[k]`.

    The output becomes a dict: `losses`, `aux`, `mutated` {placeholder: value}, `values` {node of
    the captured graph: value}, `cotangents` {site: for each loss of a sample, one for each output},
    `gradients` {placeholder: value}. Losses `[K, T]` take T backward sweeps.
    """
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    mode = fake_mode_of(gm)
    *_, output = gm.graph.nodes
    losses = output.args[0][0][0].meta["val"]
    with faking(mode):
        rows = [losses.new_ones(losses.shape), losses.new_ones(losses.shape)]
    fakes = [n.meta["val"] for n in placeholders] + rows
    with faking(mode), torch.enable_grad(), preserve_node_meta():
        interpreter = LossByLoss(gm, spec.rows) if spec.loss_by_loss else _Joint(gm)
        try:
            traced = make_fx(interpreter.run, tracing_mode="real")(*fakes)
        except Exception as error:
            reason = str(error).strip().split("\n", 1)[0]
            foreign = tuple(filter(has_foreign_backward, gm.graph.nodes))
            if foreign:
                message = f"{type(error).__name__}: {reason}"
                raise PassError("backward", message, foreign) from error
            if re.search(_NO_DERIVATIVE, str(error)):
                raise PassError("derivative", reason.strip(". ") + ".") from error
            raise
    name_placeholders(traced.graph, [n.name for n in placeholders] + [SEEDS, WEIGHTS])
    _drop_detaches(traced.graph)
    joint = functionalize(traced, spec)
    *_, output = joint.graph.nodes
    results, writes = output.args[0]
    results = {**results, "mutated": {**results["mutated"], **writes}}
    output.args = (results,)
    _allow_any_strides(joint.graph)
    _complete_group_norms(joint.graph)
    joint.meta[KEY] = {**facts(gm), "axes": _axes(gm)}
    _mark_uses(joint.graph, gm)
    return joint


class _Joint(Interpretation):
    """Interpret the captured graph so that autograd sees the cuts described above."""

    def __init__(self, gm: fx.GraphModule):
        super().__init__(gm)
        self.axis = facts(gm)["losses_axis"]
        groups: tuple[UseGroup, ...] = facts(gm)["groups"]
        self.sites = {site.node for group in groups for site in group.sites}
        self.outputs: dict[fx.Node, list[torch.Tensor]] = {}  # of sites, on the way to the losses
        self.reruns: dict[fx.Node, list[torch.Tensor]] = {}  # of sites, on the way to parameters
        self.leaves: dict[fx.Node, torch.Tensor] = {}  # parameter placeholder -> leaf

    def run(self, *inputs: torch.Tensor) -> dict[str, Any]:
        *arguments, seeds, weights = inputs
        found = self.forward(arguments)
        cotangents = self.cotangents(found["losses"], seeds)
        return {
            **found,
            "cotangents": {n.name: tuple(c) for n, c in cotangents.items()},
            "gradients": self.gradients(cotangents, weights),
        }

    def node(self, node: fx.Node) -> Any:
        if is_use(node):
            parameter = node.args[0]
            if parameter not in self.leaves:
                self.leaves[parameter] = self.env[parameter].detach().requires_grad_()
            return self.leaves[parameter]
        if note(node).grad and not note(node).batched:
            return self.call(node, lambda n: self.env[n])
        out = self.call(node, lambda n: _cut(self.env[n]) if _is_parameter_side(n) else self.env[n])
        if node not in self.sites:
            return out
        out = tree_map_only(torch.Tensor, _separate, out)
        self.outputs[node] = _differentiable(out)
        rerun = self.call(
            node, lambda n: self.env[n] if _is_parameter_side(n) else _cut(self.env[n])
        )
        self.reruns[node] = _differentiable(rerun)
        return out

    def cotangents(self, losses: torch.Tensor, seeds: torch.Tensor) -> dict[fx.Node, list]:
        """For every site, one tuple of cotangents for each loss of a sample."""
        flat = [y for ys in self.outputs.values() for y in ys]
        found: dict[fx.Node, list] = {node: [] for node in self.outputs}
        columns = zip(loss_columns(losses, self.axis), loss_columns(seeds, self.axis), strict=True)
        for column, seed in columns:
            grads = iter(
                torch.autograd.grad(column, flat, seed, retain_graph=True, allow_unused=True)
            )
            for node, ys in self.outputs.items():
                found[node].append(tuple(next(grads) for _ in ys))
        return found

    def gradients(self, cotangents: dict[fx.Node, list], weights: torch.Tensor) -> dict[str, Any]:
        ends, weighted = [], []
        columns = loss_columns(weights, self.axis)
        for node, outputs in self.reruns.items():
            axes = differentiable_axes(node)
            for at, (y, axis) in enumerate(zip(outputs, axes, strict=True)):
                parts = [scale_rows(found[at], column, axis)
                         for found, column in zip(cotangents[node], columns)
                         if found[at] is not None and axis is not None]  # fmt: skip
                if parts and y.requires_grad:
                    ends.append(y)
                    weighted.append(sum(parts[1:], parts[0]))
        leaves = list(self.leaves.values())
        grads = torch.autograd.grad(ends, leaves, weighted, allow_unused=True) if ends else ()
        return {n.name: g for n, g in zip(self.leaves, grads)}


def differentiable_axes(node: fx.Node) -> list[SampleAxis | None]:
    """Sample axes of those outputs of a node that can carry gradient."""
    values = tensors(node.meta["val"])
    return [a for a, t in zip(note(node).axes, values) if t.is_floating_point() or t.is_complex()]


def loss_columns(losses: torch.Tensor, axis: SampleAxis) -> list[torch.Tensor]:
    """Split `[K, T]` (or any shape with one sample axis) into T vectors `[K]`."""
    if axis.dim is None:
        return list(losses.reshape(-1, 1).unbind(0))
    if losses.ndim == 1:
        return [losses]
    return list(losses.movedim(axis.dim, 0).flatten(1).unbind(1))


def scale_rows(value: torch.Tensor, weights: torch.Tensor, axis: SampleAxis) -> torch.Tensor:
    """Multiply the part of sample k by `weights[k]`; `[2*K]` with outer 2 is scaled by `w, w`."""
    if axis.dim is None:
        return value * weights.reshape(())
    if axis.outer * axis.inner > 1:
        weights = weights[None, :, None].expand(axis.outer, -1, axis.inner).reshape(-1)
    behind = value.ndim - axis.dim - 1
    return value * weights.to(value.dtype).reshape(-1, *[1] * behind)


def _is_parameter_side(node: fx.Node) -> bool:
    return note(node).grad and not note(node).batched


def _cut(value: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.Tensor.detach, value)


def _separate(value: torch.Tensor) -> torch.Tensor:
    """An output of a site, of which autograd sees what happens behind the site alone.

    `h, c = lstm_cell(...)` computes h from c: the cotangent of c must not count that path.
    """
    if value.requires_grad:
        return value.view_as(value)
    if value.is_floating_point() or value.is_complex():
        return value.detach().requires_grad_()
    return value


def _differentiable(out: Any) -> list[torch.Tensor]:
    return [t for t in tensors(out) if t.is_floating_point() or t.is_complex()]


def name_placeholders(graph: fx.Graph, names: list[str]) -> None:
    """Give the placeholders of a trace names that say what they are."""
    old = [n for n in graph.nodes if n.op == "placeholder"]
    for node, name in zip(old, names, strict=True):
        with graph.inserting_before(node):
            new = graph.placeholder(name)
        new.meta = node.meta
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _drop_detaches(graph: fx.Graph) -> None:
    """In a graph of kernels no autograd listens."""
    for node in graph.nodes:
        if node.target == torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _allow_any_strides(graph: fx.Graph) -> None:
    """Reshape where the first batch could be viewed: a later one may have other strides."""
    for node in graph.nodes:
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default


def _complete_group_norms(graph: fx.Graph) -> None:
    """Ask for the input's gradient, without which PyTorch 2.13 crashes on channels-last inputs."""
    for node in graph.nodes:
        if node.target == torch.ops.aten.native_group_norm_backward.default:
            node.args = (*node.args[:-1], [True, *node.args[-1][1:]])


def _axes(gm: fx.GraphModule) -> dict[str, tuple[SampleAxis | None, ...]]:
    """Sample axes of the values of the captured graph, by name of the node."""
    return {n.name: note(n).axes for n in gm.graph.nodes}


def _mark_uses(graph: fx.Graph, captured: fx.GraphModule) -> None:
    """Keep the use nodes visible: the value of a use is `use(parameter)` here as well."""
    *_, output = graph.nodes
    inputs = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    first = next(n for n in graph.nodes if n.op != "placeholder")
    values = dict(output.args[0]["values"])
    for node in captured.graph.nodes:
        if is_use(node):
            with graph.inserting_before(first):
                values[node.name] = graph.call_function(use, (inputs[node.args[0].name],))
            values[node.name].meta = dict(node.meta)
    output.args = (map_aggregate({**output.args[0], "values": values}, lambda x: x),)
