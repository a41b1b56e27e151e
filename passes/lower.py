"""`lower`: write the Jacobian of every use as factors, or as per-sample gradients."""

import operator
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from passes.annotations import KEY, SampleAxis, facts, source_line
from passes.extract import extract
from passes.factors import Contribution, Factors, Use
from passes.kernels import per_sample_gradients
from passes.operands import Emitter, NotFactored, Operands
from passes.per_sample import PerSampleVJP, RegionPullback
from passes.sites import Site, UseGroup
from passes.spec import PassError, Spec, tensors

# Views that show every element of a parameter at most once: they keep inner products.
_ISOMETRIES = {"t", "transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "flatten",
               "unflatten", "select", "slice", "narrow", "alias", "contiguous", "clone", "chunk",
               "split", "split_with_sizes", "unbind", "tensor_split", "numpy_T", "mT", "movedim",
               "getitem", "view_as", "reshape_as", "_unsafe_view", "swapaxes"}  # fmt: skip


def lower(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Find a rule for every site; emit the operands it names.

    before   values, cotangents
    becomes  the same, and facts["contributions"]: `linear.weight: "kso,ksi->oi" of (B, A)`

    Raises: PassError "uncovered" naming every use that neither a rule nor the fallback covers.
    """
    lowering = _Lowering(gm, spec)
    groups = [group for group in facts(gm)["groups"] if lowering.is_reached(group)]
    reused = _reused(groups) if spec.cross_terms else set()
    contributions, uncovered = [], []
    for group in groups:
        try:
            contributions.append(
                lowering.group(group, any(u.args[0] in reused for u in group.uses))
            )
        except PassError as error:
            uncovered += error.nodes
    if uncovered:
        raise PassError("uncovered", "uses that nothing covers", tuple(uncovered))
    if not contributions:
        raise PassError("no parameter", "no trainable parameter reaches the losses")
    if reused:
        names = {spec.inputs[p.name].name for p in reused}
        contributions = lowering.add_uses(contributions, names)
    facts(gm)["contributions"] = tuple(contributions)
    return gm


def _reused(groups: list[UseGroup]) -> set[fx.Node]:
    """Parameters with more than one use."""
    counts = Counter(use.args[0] for group in groups for use in group.uses)
    return {parameter for parameter, count in counts.items() if count > 1}


class _Lowering:
    def __init__(self, gm: fx.GraphModule, spec: Spec):
        self.gm, self.spec, self.emitter = gm, spec, Emitter(gm)
        *_, output = gm.graph.nodes
        self.values: dict[str, Any] = output.args[0]["values"]
        # of a site: for each loss of a sample, one node (or None) for each output
        self.cotangents: dict[str, tuple[tuple, ...]] = output.args[0]["cotangents"]
        self.axes: dict[str, tuple[SampleAxis | None, ...]] = gm.meta[KEY]["axes"]

    def is_reached(self, group: UseGroup) -> bool:
        return any(self.site_is_reached(s.node) for s in group.sites)

    def samples(self) -> int | torch.SymInt:
        """The symbolic number of samples."""
        *_, output = self.gm.graph.nodes
        axis = self.gm.meta[KEY]["losses_axis"]
        return 1 if axis.dim is None else output.args[0]["losses"].meta["val"].shape[axis.dim]

    def site_is_reached(self, node: fx.Node) -> bool:
        return any(c is not None for column in self.cotangents[node.name] for c in column)

    def group(self, group: UseGroup, as_gradients: bool = False) -> Contribution:
        """Lower one group; with `as_gradients` to one `[k, *parameter]` for each use."""
        uses = tuple(self.use(u, group) for u in group.uses)
        try:
            factors = tuple(f for f in map(self.site, group.sites) if f is not None)
        except NotFactored:
            return Contribution(uses, "fallback", None, self.fallback(group))
        isometric = len(group.uses) == 1 and all(_name(n) in _ISOMETRIES for n in group.region)
        if isometric and len(factors) == 1 and not as_gradients:
            return Contribution(uses, "rule", factors[0], (), factors)
        return Contribution(uses, "region", None, self.region(group, factors), factors)

    def add_uses(self, contributions: list[Contribution], reused: set[str]) -> list[Contribution]:
        """Add the per-sample gradients of all uses of a parameter: exact cross terms."""
        kept: list[Contribution] = []
        gradients: dict[str, list[tuple[Use, fx.Node, Contribution]]] = {}
        for contribution in contributions:
            if not any(use.parameter in reused for use in contribution.uses):
                kept.append(contribution)
                continue
            for use, jacobian in zip(contribution.uses, contribution.jacobians, strict=True):
                gradients.setdefault(use.parameter, []).append((use, jacobian, contribution))
        for found in gradients.values():
            total = found[0][1]
            for _, jacobian, _ in found[1:]:
                total = self.emitter.call(
                    torch.ops.aten.add.Tensor, total, jacobian, val=total.meta["val"]
                )
            factors = tuple(f for _, _, c in found for f in c.all_factors)
            uses = tuple(use for use, _, _ in found)
            kept.append(Contribution(uses, "sum", None, (total,), factors))
        return kept

    def use(self, node: fx.Node, group: UseGroup) -> Use:
        site = group.sites[0].node
        name = self.spec.inputs[node.args[0].name].name
        op = "+".join(sorted({_name(s.node) for s in group.sites}))
        return Use(name, tuple(node.meta["val"].shape), op, source_line(site))

    def site(self, site: Site) -> Factors | None:
        """The factors at a site by its rule; None if the losses do not depend on its output."""
        if not self.site_is_reached(site.node):
            return None
        argument, arguments = self.bind(site)
        rule = argument and self.spec.rules(site.node.target, argument)
        if not rule:
            raise NotFactored
        axes = {}
        for operand in site.node.all_input_nodes:
            value = self.values[operand.name]
            if isinstance(value, fx.Node) and len(self.axes[operand.name]) == 1:
                axes[value] = self.axes[operand.name][0]
        outputs = tuple(
            axis
            for axis, t in zip(self.axes[site.node.name], tensors(site.node.meta["val"]))
            if t.is_floating_point() or t.is_complex()
        )
        value = self.values[site.operand.name]
        op, emitter = site.node.target, self.emitter
        columns = [
            rule(Operands(emitter, op, arguments, axes, cotangents, outputs, value))
            for cotangents in self.cotangents[site.node.name]
        ]
        rows = zip(*(found.operands for found in columns))
        return replace(columns[0], operands=tuple(emitter.interleave(list(r)) for r in rows))

    def bind(self, site: Site) -> tuple[str | None, dict[str, Any]]:
        """Name the arguments as the schema does; also which one is the parameter's value."""
        node, found, places = site.node, {}, []
        if not isinstance(node.target, torch._ops.OpOverload):
            return None, {}
        for at, argument in enumerate(node.target._schema.arguments):
            if at < len(node.args):
                value = node.args[at]
            else:
                value = node.kwargs.get(argument.name, argument.default_value)
            places += [argument.name] * _count(value, site.operand)
            found[argument.name] = fx.node.map_arg(value, lambda n: self.values[n.name])
        return (places[0] if len(places) == 1 else None), found

    def region(self, group: UseGroup, factors: tuple[Factors, ...]) -> tuple[fx.Node, ...]:
        """Per-sample gradients at the sites, pulled back through the region."""
        sites = [s for s in group.sites if self.site_is_reached(s.node)]
        rows = []
        for site, found in zip(sites, factors):
            jacobian = emit_jacobian(self.emitter, found)
            shape = list(site.operand.meta["val"].shape)
            rows.append(self.emitter.call(torch.ops.aten.reshape.default, jacobian, [-1, *shape]))
        if not group.region:
            return tuple(rows)
        body, operands = extract(group, [s.operand for s in sites], with_sites=False)
        module = RegionPullback(body, len(group.uses), len(sites))
        return self.call_module(group, module, operands, rows)

    def fallback(self, group: UseGroup) -> tuple[fx.Node, ...]:
        """Per-sample gradients of the uses by autograd, one loss of each sample after the other."""
        losses = range(len(next(iter(self.cotangents.values()))))
        columns = [self.fallback_column(group, column) for column in losses]
        return tuple(self.emitter.interleave(list(of_use)) for of_use in zip(*columns))

    def fallback_column(self, group: UseGroup, column: int) -> tuple[fx.Node, ...]:
        sites = list(dict.fromkeys(s.node for s in group.sites))
        ends, cotangents, axes = [], [], []
        for node in sites:
            places = [
                (at, axis)
                for at, (axis, t) in enumerate(zip(self.axes[node.name], tensors(node.meta["val"])))
                if t.is_floating_point() or t.is_complex()
            ]
            for (at, axis), cotangent in zip(places, self.cotangents[node.name][column]):
                if cotangent is None:
                    continue
                if axis is None:
                    raise PassError("uncovered", "no fallback", (node,))
                ends.append((node, at if isinstance(node.meta["val"], tuple | list) else None))
                cotangents.append(cotangent)
                axes.append(axis)
        body, operands = extract(group, ends, with_sites=True)
        module = PerSampleVJP(body, len(group.uses), tuple(axes))
        return self.call_module(group, module, operands, cotangents)

    def call_module(
        self, group: UseGroup, module: torch.nn.Module, operands: list[fx.Node], rows: list[fx.Node]
    ) -> tuple[fx.Node, ...]:
        """Emit a call of `module` and one node for each of the per-sample gradients it returns."""
        name = f"{type(module).__name__}_{group.uses[0].name}_{len(self.gm._modules)}"
        self.gm.add_submodule(name, module)
        inputs = [self.values[n.name] for n in operands]
        graph = self.gm.graph
        with graph.inserting_before(self.emitter.output):
            call = graph.call_module(name, (*inputs, *rows))
        call.meta["val"] = None
        found = []
        for at, use in enumerate(group.uses):
            with graph.inserting_before(self.emitter.output):
                item = graph.call_function(operator.getitem, (call, at))
            item.meta["val"] = rows[0].meta["val"].new_empty(self.samples(), *use.meta["val"].shape)
            found.append(item)
        return tuple(found)


def emit_jacobian(emitter: Emitter, factors: Factors) -> fx.Node:
    """Emit the per-sample gradients `[k, ...]` of a value from its factors."""
    sizes = factors.sizes()
    labels = "k" + factors.equation.split("->")[1]
    val = factors.operands[-1].meta["val"].new_empty([sizes[label] for label in labels])
    return emitter.call(
        per_sample_gradients, factors.equation, factors.one_hot, *factors.operands, val=val
    )


def _count(value: Any, node: fx.Node) -> int:
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return sum(n is node for n in found)


def _name(node: fx.Node) -> str:
    return getattr(node.target, "_opname", None) or getattr(
        node.target, "__name__", str(node.target)
    )
