"""`check_rule`: compare a rule with the exact fallback, on an example call of its operator."""

from typing import Any

import torch
from torch import Tensor, nn

from fxgram.batch import flatten
from fxgram.capture import capture
from fxgram.errors import InvalidArgument, WrongRule
from fxgram.program import Program
from fxgram.returned import Objective
from fxgram.rules import find


def check_rule(
    op: torch._ops.OpOverload,
    argument: str,
    *args: Any,
    batch_dim: Any = 0,
    output_dim: int = 0,
    rtol: float = 1e-8,
    **kwargs: Any,
) -> None:
    """Check the rule for `argument` of `op` on `op(*args, **kwargs)`, in float64.

    The value given for `argument` plays the parameter; every other tensor is data, its samples on
    `batch_dim` (an int, or a tuple with an entry for each of these tensors, None for what samples
    share). The output has its samples on `output_dim`. The Gramian by the rule is compared with
    that by one backward of `op` for each sample.

    Raises:
        WrongRule: if the two differ by more than `rtol`, or the rule did not apply.
        InvalidArgument: if there is no rule, or no tensor of that name in the call.
    """
    if find(op, argument) is None:
        raise InvalidArgument(f"There is no rule for argument `{argument}` of {op}.")
    model = _Call(op, argument, args, kwargs, output_dim)
    batch = flatten(model.data, {}, batch_dim)
    by_rule, by_fallback = (_program(model, batch, rules) for rules in (find, lambda *_: None))
    methods = {c.method for c in by_rule.contributions}
    if "fallback" in methods:
        raise WrongRule(
            f"The rule for `{argument}` of {op} did not apply to this call (NotFactored)."
        )
    with torch.no_grad():
        _, actual, _ = by_rule.planned(batch.size)(batch.tensors)
        _, expected, _ = by_fallback.planned(batch.size)(batch.tensors)
    scale = float(expected.abs().amax())
    difference = float((actual - expected).abs().amax())
    if not difference <= rtol * max(scale, 1e-30):
        raise WrongRule(
            f"The rule for `{argument}` of {op} gives another Gramian than the operator's own "
            f"backward: they differ by {difference:.3g}, the largest entry is {scale:.3g}."
        )


def _program(model: "_Call", batch: Any, rules: Any) -> Program:
    captured = capture(Objective(model, None), batch)
    return Program(
        captured, model, batch.size,
        coupled=False, loss_by_loss=False, cross_terms=False, rules=rules,
    )  # fmt: skip


class _Call(nn.Module):
    """One call of an operator, whose losses see every element of its output."""

    def __init__(self, op: Any, argument: str, args: tuple, kwargs: dict, output_dim: int):
        super().__init__()
        self._op, self._dim = op, output_dim
        names = [a.name for a in op._schema.arguments]
        self._arguments = {**dict(zip(names, args)), **kwargs}
        value = self._arguments.get(argument)
        if not isinstance(value, Tensor):
            raise InvalidArgument(f"The call gives no tensor for `{argument}`.")
        self._name = argument
        self.parameter = nn.Parameter(value.detach().double())
        self.data = tuple(
            v.double() if v.is_floating_point() else v
            for n, v in self._arguments.items()
            if isinstance(v, Tensor) and n != argument
        )

    def forward(self, *data: Tensor) -> Tensor:
        given = iter(data)
        found = {
            n: self.parameter if n == self._name else next(given) if isinstance(v, Tensor) else v
            for n, v in self._arguments.items()
        }
        keywords = {a.name for a in self._op._schema.arguments if a.kwarg_only}
        positional = [v for n, v in found.items() if n not in keywords]
        out = self._op(*positional, **{n: v for n, v in found.items() if n in keywords})
        out = out[0] if isinstance(out, tuple) else out
        rows = out.movedim(self._dim, 0).reshape(out.shape[self._dim], -1)
        return (rows * torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype).sin()).sum(1)
