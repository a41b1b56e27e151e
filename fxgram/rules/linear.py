"""Rules of products: linear, mm, matmul, bmm, mv, einsum, bilinear and their sums with a bias."""

import string

import torch
from opt_einsum.parser import parse_einsum_input

from fxgram.rules.products import product_factors
from fxgram.rules.registry import rule
from passes import Factors, NotFactored, Operands

aten = torch.ops.aten
_BATCH = string.ascii_uppercase  # labels of leading dims
_LABELS = string.ascii_lowercase


def _leading(ndim: int) -> str:
    """Labels of `ndim` leading dims, aligned on the right as broadcasting does."""
    return _BATCH[len(_BATCH) - ndim :]


def _scaled(call: Operands, name: str):
    """The cotangent times a scalar argument (`alpha`, `beta`) of the call."""
    scale = call[name]
    gradient = call.cotangent()
    return gradient if scale == 1 else call.emitter.call(aten.mul.Tensor, gradient, scale)


@rule(aten.linear.default, "weight")
def linear_weight(call: Operands) -> Factors:
    """`y[..., o] = sum_i x[..., i] w[o, i]`; a weight of one dim gives no `o`."""
    x = call["input"]
    rows = _leading(x.meta["val"].ndim - 1)
    out = "o" if len(call.shape) == 2 else ""
    return product_factors(call, out + "i", rows + out, (x, rows + "i"))


@rule(aten.linear.default, "input")
def linear_input(call: Operands) -> Factors:
    """`y[..., o] = sum_i v[..., i] w[o, i]`."""
    weight, rows = call["weight"], _leading(len(call.shape) - 1)
    out = "o" if weight.meta["val"].ndim == 2 else ""
    return product_factors(call, rows + "i", rows + out, (weight, out + "i"))


@rule(aten.linear.default, "bias")
def linear_bias(call: Operands) -> Factors:
    """`y[..., o] = ... + b[o]`."""
    return added(call)


def added(call: Operands, cotangent=None) -> Factors:
    """Factors of a summand: its dims are aligned with the output's on the right."""
    axes = call.cotangent().meta["val"].ndim
    output = _leading(axes)
    return product_factors(call, output[axes - len(call.shape) :], output, cotangent=cotangent)


@rule(aten.mm.default, "mat2")
def mm_right(call: Operands) -> Factors:
    """`y[n, o] = sum_i x[n, i] w[i, o]`."""
    return product_factors(call, "io", "no", (call["self"], "ni"))


@rule(aten.mm.default, "self")
def mm_left(call: Operands) -> Factors:
    """`y[o, n] = sum_i w[o, i] x[i, n]`."""
    return product_factors(call, "oi", "on", (call["mat2"], "in"))


@rule(aten.addmm.default, "mat2")
def addmm_right(call: Operands) -> Factors:
    """`y = beta * b + alpha * x w`."""
    scaled = _scaled(call, "alpha")
    return product_factors(call, "io", "no", (call["mat1"], "ni"), cotangent=scaled)


@rule(aten.addmm.default, "mat1")
def addmm_left(call: Operands) -> Factors:
    """`y = beta * b + alpha * w x`."""
    scaled = _scaled(call, "alpha")
    return product_factors(call, "oi", "on", (call["mat2"], "in"), cotangent=scaled)


@rule(aten.bmm.default, "mat2")
def bmm_right(call: Operands) -> Factors:
    """`y[b, n, o] = sum_i x[b, n, i] w[b, i, o]`, samples on n."""
    return product_factors(call, "bio", "bno", (call["self"], "bni"))


@rule(aten.bmm.default, "self")
def bmm_left(call: Operands) -> Factors:
    """`y[b, o, n] = sum_i w[b, o, i] x[b, i, n]`, samples on n."""
    return product_factors(call, "boi", "bon", (call["mat2"], "bin"))


@rule(aten.baddbmm.default, "batch2")
def baddbmm_right(call: Operands) -> Factors:
    """`y = beta * b + alpha * x w`, batched."""
    scaled = _scaled(call, "alpha")
    return product_factors(call, "bio", "bno", (call["batch1"], "bni"), cotangent=scaled)


@rule(aten.baddbmm.default, "batch1")
def baddbmm_left(call: Operands) -> Factors:
    """`y = beta * b + alpha * w x`, batched."""
    scaled = _scaled(call, "alpha")
    return product_factors(call, "boi", "bon", (call["batch2"], "bin"), cotangent=scaled)


@rule(aten.addmm.default, "self")
@rule(aten.baddbmm.default, "self")
@rule(aten.addmv.default, "self")
def added_bias(call: Operands) -> Factors:
    """`y = beta * b + ...`, broadcast."""
    return added(call, _scaled(call, "beta"))


@rule(aten.mv.default, "vec")
def mv_vector(call: Operands) -> Factors:
    """`y[n] = sum_i x[n, i] v[i]`."""
    return product_factors(call, "i", "n", (call["self"], "ni"))


@rule(aten.addmv.default, "vec")
def addmv_vector(call: Operands) -> Factors:
    """`y[n] = beta * b[n] + alpha * sum_i x[n, i] v[i]`."""
    scaled = _scaled(call, "alpha")
    return product_factors(call, "i", "n", (call["mat"], "ni"), cotangent=scaled)


def _matmul_labels(left: int, right: int) -> tuple[str, str, str]:
    """Labels of both operands and of the result of `matmul`, from their numbers of dims."""
    a = "i" if left == 1 else _leading(left - 2) + "ni"
    b = "i" if right == 1 else _leading(right - 2) + "io"
    batch = _leading(max(left - 2, right - 2, 0))
    return a, b, batch + ("n" if left > 1 else "") + ("o" if right > 1 else "")


@rule(aten.matmul.default, "other")
def matmul_right(call: Operands) -> Factors:
    """`y = x @ w` with the broadcasting of matmul."""
    a, b, out = _matmul_labels(call["self"].meta["val"].ndim, len(call.shape))
    return product_factors(call, b, out, (call["self"], a))


@rule(aten.matmul.default, "self")
def matmul_left(call: Operands) -> Factors:
    """`y = w @ x` with the broadcasting of matmul."""
    a, b, out = _matmul_labels(len(call.shape), call["other"].meta["val"].ndim)
    return product_factors(call, a, out, (call["other"], b))


@rule(aten.einsum.default, "tensors")
def einsum_operand(call: Operands) -> Factors:
    """Any einsum without repeated labels in one operand."""
    tensors = call["tensors"]
    shapes = [[int(n) if isinstance(n, int) else 2 for n in t.meta["val"].shape] for t in tensors]
    inputs, output, _ = parse_einsum_input((call["equation"], *shapes), shapes=True)
    labels = inputs.split(",")
    if any(len(set(term)) != len(term) for term in (*labels, output)):
        raise NotFactored
    at = next(i for i, t in enumerate(tensors) if t is call.value)
    others = [(t, term) for i, (t, term) in enumerate(zip(tensors, labels)) if i != at]
    return product_factors(call, labels[at], output, *others)


@rule(aten.tensordot.default, "self")
@rule(aten.tensordot.default, "other")
def tensordot_operand(call: Operands) -> Factors:
    """`y = tensordot(x, w, dims)`: the dims of `x` that stay, then those of `w`."""
    left, right = call["self"], call["other"]
    dims, count = left.meta["val"].ndim, right.meta["val"].ndim
    labels = _LABELS[:dims], list(_LABELS[dims : dims + count])
    for mine, theirs in zip(call["dims_self"], call["dims_other"]):
        labels[1][theirs] = labels[0][mine]
    a, b = labels[0], "".join(labels[1])
    output = "".join(label for label in a + b if not (label in a and label in b))
    own, other = (a, (right, b)) if call.value is left else (b, (left, a))
    return product_factors(call, own, output, other)


@rule(aten.bilinear.default, "weight")
def bilinear_weight(call: Operands) -> Factors:
    """`y[..., o] = sum_ij x[..., i] w[o, i, j] z[..., j]`."""
    rows = _leading(call["input1"].meta["val"].ndim - 1)
    others = (call["input1"], rows + "i"), (call["input2"], rows + "j")
    return product_factors(call, "oij", rows + "o", *others)


@rule(aten.bilinear.default, "bias")
def bilinear_bias(call: Operands) -> Factors:
    """`y[..., o] = ... + b[o]`."""
    return added(call)
