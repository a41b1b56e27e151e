"""The rule of every pointwise operator, and of broadcasts: the local derivative, then a sum."""

import string
from typing import Any

import torch
from torch import fx

from fxgram.rules.linear import added
from fxgram.rules.products import product_factors
from fxgram.rules.registry import elementwise, rule
from passes import Factors, NotFactored, Operands

aten = torch.ops.aten


@elementwise
def pointwise(call: Operands) -> Factors:
    """`y = f(v, x, ...)` element by element, with broadcasting in any direction.

    The derivative at `v` stretched to the output's shape comes from autograd; summing it over the
    dims along which `v` was stretched is what remains.
    """
    operands = [a for a in call.arguments.values() if isinstance(a, fx.Node)]

    def local(gradient: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        env: dict[Any, Any] = dict(zip(operands, values))
        stretched = env[call.value].expand(gradient.shape).detach().requires_grad_()
        env[call.value] = stretched
        arguments = {name: env.get(a, a) if isinstance(a, fx.Node) else a
                     for name, a in call.arguments.items()}  # fmt: skip
        result = call_by_name(call.op, arguments)
        (grad,) = torch.autograd.grad(result, stretched, gradient, allow_unused=True)
        if grad is None:
            raise NotFactored
        return grad

    return added(call, call.trace(local, call.cotangent(), *operands))


def call_by_name(op: Any, arguments: dict[str, Any]) -> Any:
    """Call an operator overload with arguments named as in its schema."""
    positional, named = [], {}
    for argument in op._schema.arguments:
        if argument.kwarg_only:
            named[argument.name] = arguments[argument.name]
        else:
            positional.append(arguments[argument.name])
    return op(*positional, **named)


@rule(aten.expand.default, "self")
def expand(call: Operands) -> Factors:
    """`y = v.expand(...)`: the dims that were stretched are summed."""
    return added(call)


@rule(aten.expand_as.default, "self")
def expand_as(call: Operands) -> Factors:
    """`y = v.expand_as(x)`."""
    return added(call)


@rule(aten.fill.Tensor, "value")
def fill(call: Operands) -> Factors:
    """`y = v` everywhere."""
    return added(call)


@rule(aten.masked_fill.Tensor, "value")
def masked_fill(call: Operands) -> Factors:
    """`y = v where mask else x`."""

    def local(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, gradient, 0)

    return added(call, call.trace(local, call.cotangent(), call["mask"]))


@rule(aten.prelu.default, "weight")
def prelu_weight(call: Operands) -> Factors:
    """`y = x if x > 0 else w[c] x`, the channels on dim 1."""
    x = call["self"]
    ndim = x.meta["val"].ndim

    def local(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, 0, x * gradient)

    output = ("nc" + string.ascii_uppercase)[:ndim]
    labels = "c" if len(call.shape) == 1 else ""
    if ndim == 1:
        labels = "x"[: len(call.shape)]
    return product_factors(call, labels, output, cotangent=call.trace(local, call.cotangent(), x))
