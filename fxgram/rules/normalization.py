"""Rules of normalizations: weight and bias act on the normalized input element by element."""

import string

import torch
from torch import fx

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


def _weight(call: Operands) -> Factors:
    """`y = normalized(x) * w + b`: the operator itself without `w` and `b` normalizes."""
    bare = {**call.arguments, "weight": None, "bias": None}
    operands = [a for a in bare.values() if isinstance(a, fx.Node)]

    def local(gradient: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        env = dict(zip(operands, values))
        arguments = {n: env[a] if isinstance(a, fx.Node) else a for n, a in bare.items()}
        normalized = call_by_name(call.op, arguments)
        return gradient * (normalized[0] if isinstance(normalized, tuple) else normalized)

    product = call.trace(local, call.cotangent(), *operands)
    return product_factors(call, *_labels(call), cotangent=product)


def _bias(call: Operands) -> Factors:
    """`y = ... + b`."""
    return product_factors(call, *_labels(call))


for _op in (aten.layer_norm.default, aten.group_norm.default, aten.instance_norm.default,
            aten.batch_norm.default, aten._native_batch_norm_legit_functional.default,
            aten.rms_norm.default):  # fmt: skip
    rule(_op, "weight")(_weight)
    if _op is not aten.rms_norm.default:
        rule(_op, "bias")(_bias)
