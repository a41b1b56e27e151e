"""`canonicalize`: one flat graph without regions, assertions or second names for a parameter."""

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from passes.autocast import under_autocast
from passes.dependence import is_random
from passes.functionalize import written_arguments
from passes.opaque import Hooked
from passes.spec import PassError, Spec, tensors

aten = torch.ops.aten
_NO_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_MARKERS = {"fxgram.call.default", "fxgram.hook.default"}  # recorded by fxgram/calls.py
_ASSERTIONS = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
               "sym_constrain_range_for_size"}  # fmt: skip


def canonicalize(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Inline regions, drop assertions, let every parameter have one placeholder.

    before   z = wrap_with_set_grad_enabled(False, submod, x, w)
    becomes  z = mul(detach(x), detach(w))           every operand of the region is detached

    before   z = wrap_with_autocast("cpu", bfloat16, True, ..., submod, x, w)
    becomes  z = linear_under_autocast(x, w)         every operator that autocast changes

    before   (z,) = cond(p, f, g, (x,))
    becomes  z = where(p, f(where(p, x, detach(x))), g(where(p, detach(x), x)))

    before   (z,) = fxgram.call([x], [], 3)          a marker that capture left
    becomes  (z,) = Round([x], [])                   what key 3 stands for

    Raises: PassError "control flow" for a region that cannot be inlined (scan, ...).
    """
    flat = _Flattener(gm, spec)
    flat.inline(gm, {}, _Modes())
    return fx.GraphModule(gm, flat.graph)


def refuse_operator(node: fx.Node) -> None:
    """Raise PassError "operator" for what no later pass can take.

    Functorch's own operators show that `torch.vmap` or `torch.func` ran inside.
    """
    module = getattr(node.target, "__module__", "") or ""
    if "functorch" in module or "_functorch" in repr(node.target):
        raise PassError("operator", "torch.vmap or torch.func inside of the objective", (node,))
    if any(t.layout != torch.strided for t in tensors(node.meta.get("val"))):
        raise PassError("operator", "sparse tensors (use dense ones, or a mask)", (node,))
    name = getattr(node.target, "_opname", "")
    if name == "instance_norm" and node.args[3] is not None and node.args[5]:
        raise PassError(
            "operator", "InstanceNorm(track_running_stats=True) in training mode", (node,)
        )
    if name.startswith("embedding"):
        found = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))
        if {**found, **node.kwargs}.get("sparse"):
            raise PassError("operator", "sparse gradients (use sparse=False)", (node,))
        if name == "embedding_renorm_":
            raise PassError(
                "operator",
                "Embedding(max_norm=...), which changes its weight in the forward (renormalise the "
                "weight after each optimizer step)",
                (node,),
            )


def _updates_statistics(node: fx.Node) -> bool:
    """Batch norm in training mode, whose schema does not say that it writes."""
    return node.target == aten.batch_norm.default and node.args[5] and node.args[3] is not None


def _drops_everything(node: fx.Node) -> bool:
    """`dropout(x, 1.0, train=True)` draws nothing in eager mode, where it is `x * 0`."""
    return (
        node.target == aten.dropout.default and len(node.args) == 3 and node.args[1:] == (1.0, True)
    )


@dataclass(frozen=True)
class _Modes:
    """What holds where an operator is called."""

    grad: bool = True
    autocast: tuple[tuple[str, torch.dtype], ...] = ()

    def inside(self, node: fx.Node) -> tuple["_Modes", Any, list[Any]]:
        """The modes inside of a region, its body and its operands."""
        if node.target is _NO_GRAD:
            grad, body, *operands = node.args
            return replace(self, grad=grad), body, operands
        device, dtype, enabled, _, body, *operands = node.args
        kept = tuple(entry for entry in self.autocast if entry[0] != device)
        dtype = dtype or torch.get_autocast_dtype(device)
        return replace(self, autocast=kept + ((device, dtype),) * enabled), body, operands


class _Flattener:
    def __init__(self, gm: fx.GraphModule, spec: Spec):
        self.root, self.spec, self.graph = gm, spec, fx.Graph()
        self.detached: dict[fx.Node, fx.Node] = {}
        self.placeholders: dict[str, fx.Node] = {}  # the first placeholder of each parameter

    def inline(self, gm: fx.GraphModule, env: dict[fx.Node, Any], modes: _Modes) -> Any:
        """Copy the graph of `gm` behind what is there; `env` binds its placeholders in a region."""
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                if node not in env:
                    env[node] = self._placeholder(node)
            elif node.op == "output":
                result = map_arg(node.args[0], lambda n: env[n])
                if gm is self.root:
                    self.graph.output(result)
                return result
            elif node.op == "get_attr":
                child = getattr(gm, str(node.target), None)
                env[node] = child if isinstance(child, fx.GraphModule) else self._constant(gm, node)
            elif node.target in (_NO_GRAD, _AUTOCAST):
                env[node] = self._region(node, env, modes)
            elif node.target is operator.getitem and isinstance(env[node.args[0]], tuple | list):
                env[node] = env[node.args[0]][node.args[1]]
            elif node.target is torch.ops.higher_order.cond:
                env[node] = self._cond(node, env, modes)
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                raise PassError("control flow", node.target.__name__, (node,))
            elif getattr(node.target, "_opname", node.name) not in _ASSERTIONS:
                refuse_operator(node)
                env[node] = self._call(node, env, modes)
        raise AssertionError("a graph ends in its output")

    def _call(self, node: fx.Node, env: dict[fx.Node, Any], modes: _Modes) -> fx.Node:
        copy = self.graph.node_copy(node, lambda n: env[n])
        if str(node.target) in _MARKERS:
            copy.target, copy.args = self.spec.calls[copy.args[-1]], copy.args[:-1]
        if _drops_everything(copy):
            copy.target, copy.args = aten.mul.Tensor, (copy.args[0], 0)
        if not modes.grad and not isinstance(copy.target, Hooked):
            copy.args = map_arg(copy.args, self._detach)
            copy.kwargs = map_arg(copy.kwargs, self._detach)
            if written := written_arguments(node):
                return env[written[0]]  # the tensor itself, with its gradient
        if _updates_statistics(copy):
            return self._batch_norm(copy, modes)
        copy.target = under_autocast(copy.target, modes.autocast)
        return copy

    def _batch_norm(self, node: fx.Node, modes: _Modes) -> fx.Node:
        """Write out what batch norm in training mode does to its running statistics."""
        x, weight, bias, mean, variance, _, momentum, eps, *_ = node.args
        functional = aten._native_batch_norm_legit_functional.default
        node.target = under_autocast(functional, modes.autocast)
        node.args = (x, weight, bias, mean, variance, True, momentum, eps)
        out, value = node, node.meta["val"]
        node.meta = {k: v for k, v in node.meta.items() if k != "val"}
        for output, buffer in ((0, None), (3, mean), (4, variance)):
            item = self.graph.call_function(operator.getitem, (node, output))
            item.meta = {**node.meta, "val": value if buffer is None else buffer.meta["val"]}
            if buffer is None:
                out = item
            else:
                write = self.graph.call_function(aten.copy_.default, (buffer, item))
                write.meta = dict(item.meta)
        node.meta["val"] = (value, None, None, None, None)
        return out

    def _region(self, node: fx.Node, env: dict[fx.Node, Any], modes: _Modes) -> Any:
        modes, body, operands = modes.inside(node)
        module = env[body]
        inner = [n for n in module.graph.nodes if n.op == "placeholder"]
        bound = {p: env[o] if isinstance(o, fx.Node) else o for p, o in zip(inner, operands)}
        return self.inline(module, bound, modes)

    def _cond(self, node: fx.Node, env: dict[fx.Node, Any], modes: _Modes) -> list[fx.Node]:
        """Run both branches and choose with `where`, also between each operand and itself detached.

        So no gradient reaches an operand through the branch that is not taken, not even NaN.
        """
        predicate, *branches, operands = node.args
        chosen = env[predicate]
        results = []
        for at, branch in enumerate(branches):
            module = env[branch]
            inner = [n for n in module.graph.nodes if n.op == "placeholder"]
            if any(is_random(n) for n in module.graph.nodes if n.op == "call_function"):
                raise PassError("control flow", "random numbers in a branch of cond", (node,))
            bound = {
                p: self._only_if(env[o], chosen, at == 0, node) if isinstance(o, fx.Node) else o
                for p, o in zip(inner, operands)
            }
            results.append(self.inline(module, bound, modes))
        return [self._where(chosen, a, b, node) for a, b in zip(*results)]

    def _only_if(self, value: fx.Node, chosen: fx.Node, wanted: bool, node: fx.Node) -> fx.Node:
        detached = self._detach(value)
        if detached is value:
            return value
        pair = (value, detached) if wanted else (detached, value)
        return self._where(chosen, *pair, node)

    def _where(self, chosen: Any, a: Any, b: Any, node: fx.Node) -> fx.Node:
        found = self.graph.call_function(aten.where.self, (chosen, a, b))
        found.meta = {**node.meta, "val": a.meta["val"]}
        return found

    def _placeholder(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node)
        bound = self.spec.inputs[node.name]
        if bound.kind == "parameter":
            return self.placeholders.setdefault(bound.name, copy)
        return copy

    def _constant(self, gm: fx.GraphModule, node: fx.Node) -> fx.Node:
        raise PassError("region", f"constant {node.target} inside a region", (node,))

    def _detach(self, node: fx.Node) -> fx.Node:
        values = tensors(node.meta.get("val"))
        if not isinstance(node.meta.get("val"), torch.Tensor) or not (
            values[0].is_floating_point() or values[0].is_complex()
        ):
            return node
        if node not in self.detached:
            after = node.next
            while after.op == "placeholder":
                after = after.next
            with self.graph.inserting_before(after):
                copy = self.graph.call_function(aten.detach.default, (node,))
            copy.meta = dict(node.meta)
            self.detached[node] = copy
        return self.detached[node]
