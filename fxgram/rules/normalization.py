"""Rules of normalizations: weight and bias act on the normalized input element by element.

The statistics are those of the forward: calls are written as PyTorch itself makes them, so that
`clean` finds them equal.
"""

import math
import operator
import string

import torch
from torch import Tensor, fx

from fxgram.rules.pointwise import call_by_name
from fxgram.rules.products import product_factors
from fxgram.rules.registry import rule
from passes import Factors, Operands
from passes.kernels import channel_sums, normalized_product

aten = torch.ops.aten


def _labels(call: Operands) -> tuple[str, str]:
    """Labels of the affine parameters and of the output: the last dims, or the channels (dim 1)."""
    ndim = call.cotangent().meta["val"].ndim
    output = ("nc" + string.ascii_uppercase)[:ndim]
    if "normalized_shape" in call.arguments:
        return output[ndim - len(call["normalized_shape"]) :], output
    return "c", output


def _traced(call: Operands, function, *names: str) -> fx.Node:
    """Emit `function(gradient, **arguments)` for tensors among the arguments of these names."""
    given = {name: call[name] for name in names}
    nodes = {name: a for name, a in given.items() if isinstance(a, fx.Node)}

    def positional(gradient: Tensor, *values: Tensor) -> Tensor:
        return function(gradient, **{**given, **dict(zip(nodes, values))})

    return call.trace(positional, call.cotangent(), *nodes.values())


def _bias(call: Operands) -> Factors:
    """`y = ... + b`."""
    return product_factors(call, *_labels(call))


@rule(aten.rms_norm.default, "weight")
@rule(aten._native_batch_norm_legit_functional.default, "weight")
def normalized_weight(call: Operands) -> Factors:
    """`y = normalized(x) * w + b`: the operator itself without `w` and `b` normalizes."""
    bare = {**call.arguments, "weight": None, "bias": None}
    operands = [a for a in bare.values() if isinstance(a, fx.Node)]

    def local(gradient: Tensor, *values: Tensor) -> Tensor:
        env = dict(zip(operands, values))
        arguments = {n: env[a] if isinstance(a, fx.Node) else a for n, a in bare.items()}
        normalized = call_by_name(call.op, arguments)
        return gradient * (normalized[0] if isinstance(normalized, tuple) else normalized)

    product = call.trace(local, call.cotangent(), *operands)
    return product_factors(call, *_labels(call), cotangent=product)


def _statistics(call: Operands, op, *arguments) -> tuple[fx.Node, fx.Node]:
    """Mean and 1 / std of the forward: its own call, which `clean` finds equal."""
    emit = call.emitter.call
    node = emit(op, *arguments)
    _, mean, rstd = node.meta["val"]
    return emit(operator.getitem, node, 1, val=mean), emit(operator.getitem, node, 2, val=rstd)


@rule(aten.layer_norm.default, "weight")
def layer_norm_weight(call: Operands) -> Factors:
    """`y = (x - mean) / std * w + b`, the mean and std of the last dims."""
    x, gradient = call["input"], call.cotangent()
    arguments = x, call["normalized_shape"], call["weight"], call["bias"], call["eps"]
    statistics = _statistics(call, aten.native_layer_norm.default, *arguments)
    value = gradient.meta["val"]
    product = call.emitter.call(normalized_product, gradient, x, *statistics, val=value)
    return product_factors(call, *_labels(call), cotangent=product)


@rule(aten.group_norm.default, "weight")
def group_norm_weight(call: Operands) -> Factors:
    """`y = (x - mean) / std * w + b`, the mean and std of groups of channels."""
    x, groups, emit = call["input"], call["num_groups"], call.emitter.call
    value = x.meta["val"]
    n, c, *space = value.shape
    rows = n if isinstance(n, int) else emit(aten.sym_size.int, x, 0)
    arguments = x, call["weight"], call["bias"], rows, c, math.prod(space), groups, call["eps"]
    statistics = _statistics(call, aten.native_group_norm.default, *arguments)
    fake = call.cotangent().meta["val"].new_empty(n, c)
    product = emit(channel_sums, call.cotangent(), x, *statistics, groups, val=fake)
    return product_factors(call, "c", "nc", cotangent=product)


@rule(aten.batch_norm.default, "weight")
def batch_norm_weight(call: Operands) -> Factors:
    """`y = (x - running_mean) / running_std * w + b`; statistics of the batch couple samples."""
    if call["training"] or call["running_mean"] is None:
        return normalized_weight(call)

    def local(gradient: Tensor, input: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
        rstd = (running_var + call["eps"]).rsqrt()
        return channel_sums(gradient, input, running_mean[None, :], rstd[None, :], input.shape[1])

    names = "input", "running_mean", "running_var"
    return product_factors(call, "c", "nc", cotangent=_traced(call, local, *names))


def _instance_norm(call: Operands, of: str) -> Factors:
    """Every sample has its own copy of weight and bias, in PyTorch as well: its backward tells."""
    if not call["use_input_stats"]:
        return normalized_weight(call) if of == "weight" else _bias(call)

    def local(gradient: Tensor, input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n, c, *space = input.shape
        copies = [t.detach().repeat(n).requires_grad_() for t in (weight, bias)]
        y = torch.batch_norm(
            input.contiguous().view(1, n * c, *space), *copies, None, None, True,
            call["momentum"], call["eps"], call["cudnn_enabled"],
        )  # fmt: skip
        grads = torch.autograd.grad(y, copies, gradient.reshape(1, n * c, *space))
        return grads[of == "bias"].view(n, c)

    return product_factors(
        call, "c", "nc", cotangent=_traced(call, local, "input", "weight", "bias")
    )


@rule(aten.instance_norm.default, "weight")
def instance_norm_weight(call: Operands) -> Factors:
    """`y = (x - mean) / std * w + b`, the mean and std of each channel of each sample."""
    return _instance_norm(call, "weight")


@rule(aten.instance_norm.default, "bias")
def instance_norm_bias(call: Operands) -> Factors:
    """`y = ... + b`."""
    return _instance_norm(call, "bias")


for _op in (aten.layer_norm.default, aten.group_norm.default, aten.batch_norm.default,
            aten._native_batch_norm_legit_functional.default):  # fmt: skip
    rule(_op, "bias")(_bias)
