"""`spell_out`: write an operator that hides where a parameter meets data as simpler ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from passes.annotations import annotate, note, operator_name
from passes.dead import drop_dead_nodes
from passes.dependence import inherited
from passes.propagate import fake_mode_of, faking
from passes.spec import Spec
from passes.spellings import correction, spelling


def spell_out(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Replace operators by their spelling in `spellings`, where a parameter goes into them.

    before   out = lstm(x, [h, c], [w, u], ...)               w and u are uses
    becomes  p = linear(x, w);  linear(h, u) and gates for each step, on the same uses

    The new nodes keep the user's line, and the name of the operator that the user called.
    """
    spelled = [node for node in list(gm.graph.nodes) if _spell(gm, node)]
    if spelled:
        drop_dead_nodes(gm.graph)
        gm.recompile()
    return gm


def _spell(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Replace one node, if it has a spelling for its arguments; tell whether it had."""
    function, enters = (
        spelling(node),
        any(note(n).grad and not note(n).data for n in node.all_input_nodes),
    )
    function = (function if enters else None) or correction(node)
    if function is None:
        return False
    operands = node.all_input_nodes
    traced = _trace(gm, node, operands, function)
    if traced is None:
        return False
    env = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), operands, strict=True))
    for inner in traced.graph.nodes:
        if inner.op == "call_function":
            with gm.graph.inserting_before(node):
                env[inner] = gm.graph.node_copy(inner, lambda n: env[n])
            env[inner].meta = {**node.meta, "val": inner.meta["val"]}
            annotate(env[inner], op=operator_name(node), **inherited(env[inner]))
        elif inner.op == "output":
            _replace(node, map_arg(inner.args[0], lambda n: env[n]))
    return True


def _trace(
    gm: fx.GraphModule, node: fx.Node, operands: list[fx.Node], function: Callable
) -> fx.GraphModule | None:
    """The spelling of one call as a graph of the operators that `function` calls."""
    refused = False

    def call(*values: Any) -> Any:
        nonlocal refused
        env = dict(zip(operands, values, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: env[n])
        result = function(*args, **kwargs)
        refused = result is NotImplemented
        return () if refused else result

    fakes = [n.meta["val"] for n in operands]
    with faking(fake_mode_of(gm)), torch.enable_grad():
        traced = make_fx(call, tracing_mode="real", pre_dispatch=True)(*fakes)
    return None if refused else traced


def _replace(node: fx.Node, results: Any) -> None:
    """Let the users of `node` read `results`, and erase it: a random one would stay."""
    if isinstance(node.meta["val"], torch.Tensor):
        node.replace_all_uses_with(results)
    for item in list(node.users):
        item.replace_all_uses_with(results[item.args[1]])
        item.graph.erase_node(item)
    node.graph.erase_node(node)
