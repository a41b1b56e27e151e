"""`functionalize`: no operator changes a tensor in place."""

import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map_only

from passes.annotations import facts
from passes.opaque import place_hooks
from passes.propagate import fake_mode_of, faking
from passes.spec import PassError, Spec, tensors
from passes.targets import overload
from passes.view_inverses import write_back

aten = torch.ops.aten
# Operators that return values and write: functional form, and which output an argument becomes.
_SEVERAL = {
    aten._native_batch_norm_legit.default: (
        aten._native_batch_norm_legit_functional.default,
        {3: 3, 4: 4},
    ),
}
_FUNCTIONAL = {
    "bernoulli_.float": aten.bernoulli.p,
    "normal_.default": aten.normal_functional.default,
    "detach_.default": aten.detach.default,
}


@dataclass
class _Base:
    """One storage: the node that holds its value now."""

    value: fx.Node
    version: int = 0


@dataclass
class _Alias:
    """One tensor of the captured program: a path of views from the base of its storage."""

    base: _Base
    path: tuple[fx.Node, ...] = ()
    value: fx.Node | None = None  # node that holds the value as of `version`
    version: int = 0


def functionalize(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Replace in-place operators; values written to inputs become outputs of the graph.

    before   add_ = add_(x_view, y);  z = mul(x, 2)
    becomes  add = add(x_view, y);  x1 = slice_scatter(x, add, ...);  z = mul(x1, 2)

    The output becomes `(what it was, {placeholder: new value})`.
    """
    return _Functionalizer(gm, spec).run()


class _Functionalizer:
    def __init__(self, gm: fx.GraphModule, spec: Spec):
        self.spec = spec
        self.gm, self.graph, self.mode = gm, fx.Graph(), fake_mode_of(gm)
        self.env: dict[fx.Node, Any] = {}  # old node -> _Alias, or new node for what is no tensor
        self.mutated: dict[str, _Base] = {}
        self.placeholders: dict[int, str] = {}

    def run(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            if node.target in _SEVERAL:
                self.mutate_several(node, *_SEVERAL[node.target])
            elif node.op == "output":
                result = map_arg(node.args[0], self.read)
                writes = {name: base.value for name, base in self.mutated.items()}
                self.graph.output((result, writes))
            else:
                self.node(node)
        place_hooks(self.graph)
        out = fx.GraphModule(self.gm, self.graph)
        out.meta = dict(self.gm.meta)
        facts(out)["mutated"] = tuple(self.mutated)
        return out

    def node(self, node: fx.Node) -> None:
        written = written_arguments(node)
        if written:
            self.mutate(node, written)
            return
        copy = self.graph.node_copy(node, self.read)
        base = self.aliased(node)
        if base is None:
            self.env[node] = _Alias(_Base(copy), (), copy)
            if node.op == "placeholder":
                self.placeholders[id(self.env[node].base)] = node.name
        else:
            self.env[node] = _Alias(base.base, (*base.path, node), copy, base.base.version)

    def aliased(self, node: fx.Node) -> _Alias | None:
        """The alias that `node` is a view of, or None if it has a storage of its own."""
        if node.op != "call_function" or not node.all_input_nodes:
            return None
        called = overload(node)
        if called is not None:
            returns = called._schema.returns
            if not any(r.alias_info is not None for r in returns):
                return None
        source = node.all_input_nodes[0]
        if node.target is operator.getitem and self.aliased(source) is None:
            return None  # an item of what is no view: `unsafe_chunk`, `native_layer_norm`
        mine, theirs = tensors(node.meta.get("val")), tensors(source.meta.get("val"))
        if not mine or not theirs:
            return None
        storages = {t.untyped_storage()._cdata for t in theirs}
        shared = any(t.untyped_storage()._cdata in storages for t in mine)
        return self.env[source] if shared else None

    def read(self, node: fx.Node) -> fx.Node:
        """The new node that holds the value of `node` now."""
        alias = self.env[node]
        if not isinstance(alias, _Alias):
            return alias
        if alias.version != alias.base.version or alias.value is None:
            alias.value = self.views(alias)[-1]
            alias.version = alias.base.version
        return alias.value

    def views(self, alias: _Alias) -> list[fx.Node]:
        """Replay the path of views on the base as it is now: `[base, view, view of view, ...]`."""
        chain = [alias.base.value]
        for step in alias.path:
            source = step.all_input_nodes[0]
            at = {source: chain[-1]}
            copy = self.graph.node_copy(step, lambda n, at=at: at.get(n) or self.read(n))
            chain.append(copy)
        return chain

    def mutate(self, node: fx.Node, written: list[fx.Node]) -> None:
        if len(written) != 1:
            raise PassError("mutation", f"`{node.target}` writes to several tensors", (node,))
        target = self.env[written[0]]
        args, kwargs = _explicit(node)
        if node.target is aten.copy_.default:
            function, args = aten.expand_as.default, (args[1], args[0])
        else:
            function = _functional(node)
        kwargs = {name: value for name, value in kwargs.items() if name != "out"}
        copy = self.graph.call_function(
            function, map_arg(args, self.read), map_arg(kwargs, self.read)
        )
        copy.meta = dict(node.meta)
        self.write(target, self.cast(copy, node.meta["val"].dtype))
        self.env[node] = target

    def write(self, target: _Alias, value: fx.Node) -> None:
        """Let `target` hold `value` from here on, its base and the base's other views as well."""
        root = self.spec.inputs.get(self.placeholders.get(id(target.base), ""))
        if root is not None and root.trainable:
            raise PassError(
                "mutation",
                f"the forward changes the parameter `{root.name}`, which is trained (change it "
                "after the optimizer step, or freeze it: a frozen one may be written to)",
                (value,),
            )
        chain = self.views(target) if target.path else []
        item, within = None, None
        for base, step in reversed(list(pairwise(chain))):
            if step.target is operator.getitem:
                item = step.args[1]  # the next step is the operator that returned several views
                continue
            if step.target == aten.select.int and _is_stretched(base, step.args[1]):
                within = value  # one of many that share their memory: all of them change
                continue
            if within is not None:
                value = self.graph.call_function(aten.reshape_as.default, (value, base))
                within = None
            elif step.target == aten.detach.default and root is None:
                value = _straight_through(self.graph, base, value)
            else:
                value = write_back(self.graph, step, base, value, item)
            value.meta, item = {**base.meta, **value.meta}, None
        target.base.value, target.base.version = value, target.base.version + 1
        if id(target.base) in self.placeholders:
            self.mutated[self.placeholders[id(target.base)]] = target.base
        if not target.path:
            target.value, target.version = value, target.base.version

    def mutate_several(self, node: fx.Node, function: Any, writes: dict[int, int]) -> None:
        """An operator that returns values and writes to whole tensors: all become outputs."""
        copy = self.graph.call_function(
            function, map_arg(node.args, self.read), map_arg(node.kwargs, self.read)
        )
        copy.meta = dict(node.meta)
        self.env[node] = _Alias(_Base(copy), (), copy)
        for argument, output in writes.items():
            target = node.args[argument]
            if isinstance(target, fx.Node):
                value = self.graph.call_function(operator.getitem, (copy, output))
                value.meta = dict(target.meta)
                self.write(self.env[target], value)

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """An in-place operator keeps the type of what it writes to: `int.add_(float)` stays int."""
        fake = tree_map_only(fx.Node, lambda n: n.meta["val"], (node.args, node.kwargs))
        with faking(self.mode), torch.no_grad():
            result = node.target(*fake[0], **fake[1])
        if result.dtype == dtype:
            return node
        copy = self.graph.call_function(aten.to.dtype, (node, dtype))
        copy.meta = dict(node.meta)
        return copy


def _is_stretched(node: fx.Node, dim: int) -> bool:
    """Whether `node` is an expand whose elements along `dim` are one element in memory."""
    if node.target != aten.expand.default:
        return False
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    at = dim % len(after) - (len(after) - len(before))
    return at < 0 or (before[at] == 1 and after[dim] != 1)


def _straight_through(graph: fx.Graph, base: fx.Node, value: fx.Node) -> fx.Node:
    """A write through `detach`: the new value, with the gradient of the old one.

    `y.detach().mul_(2)` gives `y = detach(2 * y) + (y - detach(y))`.
    """
    call = graph.call_function
    still = call(aten.detach.default, (base,))
    difference = call(aten.sub.Tensor, (base, still))
    total = call(aten.add.Tensor, (value, difference))
    for node in (still, difference):
        node.meta = dict(base.meta)
    return total


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """The operands that an operator writes to."""
    called = overload(node)
    if called is None:
        return []
    arguments = called._schema.arguments
    found = []
    for at, argument in enumerate(arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            found += [value] if isinstance(value, fx.Node) else list(value or [])
    return found


def _explicit(node: fx.Node) -> tuple[tuple, dict[str, Any]]:
    """The arguments with defaults written out: `bernoulli_` has one where `bernoulli` has none."""
    args, kwargs = list(node.args), dict(node.kwargs)
    for at, argument in enumerate(node.target._schema.arguments):
        if not argument.kwarg_only and at >= len(args) and argument.name not in kwargs:
            args.append(argument.default_value)
    return tuple(args), kwargs


def _functional(node: fx.Node) -> Any:
    """The overload with the same arguments that writes to none of them.

    `pow_.Scalar` is `pow.Tensor_Scalar`, `div.out` is `div.Tensor`: names don't tell.
    """
    name = node.target._opname
    if known := _FUNCTIONAL.get(f"{name}.{node.target._overloadname}"):
        return known
    packet = getattr(getattr(torch.ops, node.target.namespace), name.removesuffix("_"), None)
    wanted = _types(node.target)
    for candidate in packet.overloads() if packet else ():
        found = getattr(packet, candidate)
        writes = any(a.alias_info and a.alias_info.is_write for a in found._schema.arguments)
        if not writes and _types(found) == wanted:
            return found
    raise PassError(
        "mutation", f"`{node.target}` has no functional form (let it return a new tensor)", (node,)
    )


def _types(op: torch._ops.OpOverload) -> list[str]:
    return [str(a.type) for a in op._schema.arguments if a.name != "out"]
