"""Rules of normalizations: weight and bias act on the normalized input element by element.

The statistics are those of the forward: calls are written as PyTorch itself makes them, so that
`clean` finds them equal.
"""

import string

import torch
from torch import Tensor, fx

from fxgram.rules.pointwise import call_by_name
from fxgram.rules.products import product_factors
from fxgram.rules.registry import rule
from passes import Factors, Operands

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


@rule(aten.layer_norm.default, "weight")
def layer_norm_weight(call: Operands) -> Factors:
    """`y = (x - mean) / std * w + b`, the mean and std of the last dims."""

    def local(gradient: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shape, eps = call["normalized_shape"], call["eps"]
        _, mean, rstd = torch.native_layer_norm(input, shape, weight, bias, eps)
        return (input - mean) * gradient * rstd

    product = _traced(call, local, "input", "weight", "bias")
    return product_factors(call, *_labels(call), cotangent=product)


def _of_channels(
    gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, groups: int
) -> Tensor:
    """`[n, c]`: sums over positions of `gradient * (x - mean) * rstd`, as PyTorch's kernels do."""
    n, c = x.shape[:2]
    gradient, x = gradient.reshape(n, c, -1), x.reshape(n, c, -1)
    product, plain = (gradient * x).sum(2), gradient.sum(2)
    product, plain = (t.reshape(n, groups, c // groups) for t in (product, plain))
    return ((product - plain * mean[..., None]) * rstd[..., None]).reshape(n, c)


@rule(aten.group_norm.default, "weight")
def group_norm_weight(call: Operands) -> Factors:
    """`y = (x - mean) / std * w + b`, the mean and std of groups of channels."""
    groups = call["num_groups"]

    def local(gradient: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        n, c, *space = input.shape
        size = 1
        for length in space:
            size *= length
        _, mean, rstd = torch.native_group_norm(
            input.contiguous(), weight, bias, n, c, size, groups, call["eps"]
        )
        return _of_channels(gradient, input, mean, rstd, groups)

    return product_factors(
        call, "c", "nc", cotangent=_traced(call, local, "input", "weight", "bias")
    )


@rule(aten.batch_norm.default, "weight")
def batch_norm_weight(call: Operands) -> Factors:
    """`y = (x - running_mean) / running_std * w + b`; statistics of the batch couple samples."""
    if call["training"] or call["running_mean"] is None:
        return normalized_weight(call)

    def local(gradient: Tensor, input: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
        rstd = (running_var + call["eps"]).rsqrt()
        return _of_channels(gradient, input, running_mean[None, :], rstd[None, :], input.shape[1])

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
