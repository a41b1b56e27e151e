"""Trace an objective that differentiates inside: below autograd, which runs for real."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.fx.traceback
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from fxgram.batch import Batch
from fxgram.captured import LARGEST, Captured, first_names
from fxgram.edges import Edges, write_edges
from fxgram.export import stand_ins
from fxgram.wrapper import Wrapper
from passes import Input, name_placeholders


class NotSymbolic(Exception):
    """Something in the forward fixed the number of samples."""


def trace(wrapper: Wrapper, batch: Batch, count: int | None) -> Captured:
    """Record the kernels of the forward and of its inner derivatives.

    For a symbolic number of samples, seen as `count` while tracing on fake tensors; if that is
    None, for the sizes of this batch alone, on its own values (tangents of zeros mix devices on
    fake tensors).

    Raises: NotSymbolic.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv() if count else None, allow_non_fake_inputs=True)
    state, bound = _state(wrapper, batch)
    dims = batch.dims if count else (None,) * len(batch.dims)
    own = [_fake(mode, tensor, None) for tensor in state.values()]
    given = [_fake(mode, t, dim) for t, dim in zip(stand_ins(batch, count), dims)]
    real = [_copy(t) for t in (*state.values(), *batch.tensors)]
    traced, place = (own + given, mode) if count else (real, nullcontext())
    edges = Edges(t for t in traced[: len(state)] if t.requires_grad)
    losses_carry = False

    def forward(*tensors: Tensor) -> tuple:
        nonlocal losses_carry
        named, arguments = dict(zip(state, tensors)), tensors[len(state) :]
        with edges:
            losses, *aux = functional_call(wrapper, named, arguments, strict=True)
        losses_carry = edges.carries(losses)
        return losses, *aux

    with place, torch.enable_grad(), torch.fx.traceback.preserve_node_meta():
        gm = make_fx(forward, tracing_mode="real")(*traced)
    samples = _symbol(mode, given, dims) if count else None
    name_placeholders(gm.graph, [f"{b.kind[0]}_{at}" for at, b in enumerate(bound)])
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    trainable = {n for n, tensor in zip(inputs, own) if tensor.requires_grad}
    gm.graph.eliminate_dead_code()
    write_edges(gm.graph, trainable, losses_carry)
    constants = _lift_constants(gm, mode, inputs[len(state) :])
    names = dict(zip(inputs, bound))
    names |= {n: Input("constant", n.name) for n in constants}
    gm.recompile()
    if not count:
        values = {n.name: n.meta["val"] for n in constants}
        fakes = own + [values[n.name] for n in constants] + given
        FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*fakes)
    return Captured(
        gm,
        {n.name: names[n] for n in gm.graph.nodes if n.op == "placeholder"},
        {n.name: value for n, value in constants.items()},
        samples,
        (2, LARGEST) if count else (batch.size, batch.size),
        wrapper.watch.aux,
        differentiated=True,
    )


def _state(wrapper: Wrapper, batch: Batch) -> tuple[dict[str, Tensor], list[Input]]:
    """Parameters and buffers of the wrapper by name, and what each of all inputs stands for."""
    canonical = first_names(wrapper.model)
    state: dict[str, Tensor] = dict(wrapper.named_parameters())
    bound = [Input("parameter", canonical[id(p)], p.requires_grad) for p in state.values()]
    for name, buffer in wrapper.named_buffers():
        state[name] = buffer
        bound.append(Input("buffer", name.removeprefix("model.")))
    return state, bound + [Input("batch", name) for name in batch.names]


def _fake(mode: FakeTensorMode, tensor: Tensor, dim: int | None) -> Tensor:
    """A fake tensor, a leaf; its size along `dim` is a symbol, one for equal sizes."""
    sizes = [DimDynamic.DUCK if d == dim else DimDynamic.STATIC for d in range(tensor.ndim)]
    context = StatelessSymbolicContext(dynamic_sizes=sizes) if mode.shape_env else None
    fake = mode.from_tensor(tensor.detach(), symbolic_context=context)
    return fake.detach().requires_grad_(tensor.requires_grad)


def _copy(tensor: Tensor) -> Tensor:
    """A leaf that the trace may write to."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _symbol(mode: FakeTensorMode, given: list[Tensor], dims: tuple[int | None, ...]) -> Any:
    """The symbol of the number of samples, if nothing was decided by it."""
    size = next(t.shape[d] for t, d in zip(given, dims) if d is not None)
    env = mode.shape_env
    if env.guards or env.replacements or not isinstance(size, torch.SymInt):
        raise NotSymbolic
    return size.node.expr


def _lift_constants(
    gm: fx.GraphModule, mode: FakeTensorMode, behind: list[fx.Node]
) -> dict[fx.Node, Tensor]:
    """Turn the tensors that the trace found in closures into placeholders before the batch."""
    found: dict[str, fx.Node] = {}
    values: dict[fx.Node, Tensor] = {}
    for node in list(gm.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in found:
            value = getattr(gm, node.target)
            with gm.graph.inserting_before(behind[0]):
                found[node.target] = gm.graph.placeholder(node.target.strip("_"))
            found[node.target].meta["val"] = _fake(mode, value, None)
            values[found[node.target]] = value
        node.replace_all_uses_with(found[node.target])
        gm.graph.erase_node(node)
    return values
