"""`lower`: write the Jacobian of every use as factors, or as per-sample gradients."""

import operator
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from passes.annotations import KEY, SampleAxis, facts, operator_name, source_line
from passes.cross_terms import add_uses
from passes.emit import add_up, concatenate, emit_jacobian
from passes.extract import extract
from passes.factors import Contribution, Factors, Use
from passes.operands import Emitter, NotFactored, Operands
from passes.per_sample import PerSampleVJP, RegionPullback
from passes.pull_back import pull_back
from passes.sites import Site, UseGroup
from passes.spec import PassError, Spec, tensors
from passes.targets import overload
from passes.views import is_isometric

aten = torch.ops.aten


def lower(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Find a rule for every site; emit the operands it names.

    before   values, cotangents
    becomes  the same, and facts["contributions"]: `linear.weight: "kso,ksi->oi" of (B, A)`

    Raises: PassError "uncovered" naming every use that neither a rule nor the fallback covers.
    """
    lowering = _Lowering(gm, spec)
    if spec.loss_by_loss:
        facts(gm)["contributions"] = tuple(lowering.loss_by_loss(facts(gm)["groups"]))
        return gm
    lowered, uncovered = [], []
    for group in facts(gm)["groups"]:
        if lowering.is_reached(group):
            try:
                lowered += [(group, contribution) for contribution in lowering.group(group)]
            except PassError as error:
                uncovered += error.nodes
    if uncovered:
        raise PassError("uncovered", "uses that nothing covers", tuple(uncovered))
    if not lowered:
        raise PassError("no parameter", "no trainable parameter reaches the losses")
    contributions = (
        add_uses(lowering.emitter, lowering.values, lowered, lowering.gradients_of)
        if spec.cross_terms
        else [c for _, c in lowered]
    )
    facts(gm)["contributions"] = tuple(contributions)
    return gm


class _Lowering:
    def __init__(self, gm: fx.GraphModule, spec: Spec):
        self.gm, self.spec, self.emitter = gm, spec, Emitter(gm)
        *_, output = gm.graph.nodes
        self.values: dict[str, Any] = output.args[0]["values"]
        # of a site: for each loss of a sample, one node (or None) for each output
        self.cotangents: dict[str, tuple[tuple, ...]] = output.args[0]["cotangents"]
        # uses of each parameter
        self.counts = Counter(
            spec.inputs[use.args[0].name].name for g in facts(gm)["groups"] for use in g.uses
        )
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

    def group(self, group: UseGroup) -> list[Contribution]:
        """Lower one group of uses: together, or each on its own where factors reach it."""
        uses = tuple(self.use(u, group) for u in group.uses)
        try:
            found = self.factors(group)
        except NotFactored:
            return [Contribution(uses, "fallback", None, self.fallback(group))]
        every = tuple(f for factors in found.values() for f in factors)
        if len(every) == 1 and is_isometric(group):
            direct = not group.region
            return [Contribution(uses, "rule", every[0], (), every, direct)]
        if len(every) == 1 and self.stands_alone(uses):
            (operand,) = found
            pulled = pull_back(self.emitter, group, operand, every[0], self.values)
            if pulled is not None:
                return [
                    Contribution((use,), "rule", own, (), (own,))
                    for use, own in zip(uses, pulled, strict=True)
                ]
        return [Contribution(uses, "region", None, self.gradients(group, found), every)]

    def stands_alone(self, uses: tuple[Use, ...]) -> bool:
        """Whether no use of a group is to be added to another one before it is squared."""
        return not self.spec.cross_terms or all(self.counts[u.parameter] == 1 for u in uses)

    def factors(self, group: UseGroup) -> dict[fx.Node, list[Factors]]:
        """Factors at each value of the parameter that meets samples; like sites are one.

        Raises: NotFactored if a site has no rule.
        """
        found: dict[fx.Node, list[Factors]] = {}
        for site in group.sites:
            factors = self.site(site)
            if factors is not None:
                found.setdefault(site.operand, []).append(factors)
        return {operand: concatenate(self.emitter, several) for operand, several in found.items()}

    def gradients_of(self, group: UseGroup) -> tuple[fx.Node, ...]:
        """Per-sample gradients of the uses of a group that has rules."""
        return self.gradients(group, self.factors(group))

    def gradients(
        self, group: UseGroup, found: dict[fx.Node, list[Factors]]
    ) -> tuple[fx.Node, ...]:
        """Per-sample gradients at the sites, added and pulled back to `[k, *parameter]`."""
        rows = []
        for operand, factors in found.items():
            parts = [emit_jacobian(self.emitter, f) for f in factors]
            shape = [-1, *operand.meta["val"].shape]
            parts = [self.emitter.call(aten.reshape.default, part, shape) for part in parts]
            rows.append(add_up(self.emitter, parts))
        if not group.region:
            return tuple(rows)
        body, operands = extract(group, list(found), with_sites=False)
        module = RegionPullback(body, len(group.uses), len(rows))
        return self.call_module(group, module, operands, rows, rows[0].meta["val"].shape[0])

    def loss_by_loss(self, groups: tuple[UseGroup, ...]) -> list[Contribution]:
        """Take the per-loss gradients that the trace already holds, one for each use."""
        *_, output = self.gm.graph.nodes
        jacobians = output.args[0]["jacobians"]
        found: dict[str, list[tuple[Use, fx.Node]]] = {}
        for group in groups:
            for node in group.uses:
                if node.name in jacobians:
                    use = self.use(node, group)
                    key = use.parameter if self.spec.cross_terms else node.name
                    found.setdefault(key, []).append((use, jacobians[node.name]))
        if not found:
            raise PassError("no parameter", "no trainable parameter reaches the losses")
        contributions = []
        for several in found.values():
            total = add_up(self.emitter, [jacobian for _, jacobian in several])
            uses = tuple(use for use, _ in several)
            contributions.append(Contribution(uses, "losses", None, (total,)))
        return contributions

    def use(self, node: fx.Node, group: UseGroup) -> Use:
        site = group.sites[0].node
        name = self.spec.inputs[node.args[0].name].name
        op = "+".join(sorted({operator_name(s.node) for s in group.sites}))
        return Use(name, tuple(node.meta["val"].shape), op, source_line(site))

    def site(self, site: Site) -> Factors | None:
        """The factors at a site by its rule; None if the losses do not depend on its output."""
        if not self.site_is_reached(site.node):
            return None
        if _is_complex(site.node) or _is_complex(site.operand):
            raise NotFactored  # rules are written for real products
        argument, arguments = self.bind(site)
        rule = argument and self.spec.rules(overload(site.node), argument)
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
        if not all(isinstance(found, Factors) for found in columns):
            raise PassError("rule", f"the rule for `{argument}` of {op}", (site.node,))
        rows = zip(*(found.operands for found in columns))
        operands = tuple(emitter.interleave(list(r)) for r in rows)
        kernels = tuple(
            replace(of[0], jacobian=emitter.interleave([kernel.jacobian for kernel in of]))
            for of in zip(*(found.kernels for found in columns))
        )
        return replace(columns[0], operands=operands, kernels=kernels)

    def bind(self, site: Site) -> tuple[str | None, dict[str, Any]]:
        """Name the arguments as the schema does; also which one is the parameter's value."""
        node, found, places = site.node, {}, []
        called = overload(node)
        if called is None:
            return None, {}
        for at, argument in enumerate(called._schema.arguments):
            if at < len(node.args):
                value = node.args[at]
            else:
                value = node.kwargs.get(argument.name, argument.default_value)
            places += [argument.name] * _count(value, site.operand)
            found[argument.name] = fx.node.map_arg(value, lambda n: self.values[n.name])
        return (places[0] if len(places) == 1 else None), found

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
        return self.call_module(group, module, operands, cotangents, self.samples())

    def call_module(
        self,
        group: UseGroup,
        module: torch.nn.Module,
        operands: list[fx.Node],
        rows: list[fx.Node],
        count: int | torch.SymInt,
    ) -> tuple[fx.Node, ...]:
        """Emit a call of `module` and a node for each of the `[count, ...]` that it returns."""
        name = f"{type(module).__name__}_{group.uses[0].name}_{len(self.gm._modules)}"
        self.gm.add_submodule(name, module)
        inputs = [self.values[n.name] for n in operands]
        graph = self.gm.graph
        with graph.inserting_before(self.emitter.output):
            call = graph.call_module(name, (*inputs, *rows))
        call.meta.update(val=None, emitted=True)
        found = []
        for at, use in enumerate(group.uses):
            with graph.inserting_before(self.emitter.output):
                item = graph.call_function(operator.getitem, (call, at))
            val = rows[0].meta["val"].new_empty(count, *use.meta["val"].shape)
            item.meta.update(val=val, emitted=True)
            found.append(item)
        return tuple(found)


def _is_complex(node: fx.Node) -> bool:
    return any(t.is_complex() for t in tensors(node.meta["val"]))


def _count(value: Any, node: fx.Node) -> int:
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return sum(n is node for n in found)
