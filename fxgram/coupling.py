"""Name the operators through which the loss of one sample reaches another sample."""

from typing import Any

import torch
from torch import fx

from fxgram.program import Program
from passes import SampleAxis, differentiable_axes, loss_columns, note, scale_rows, tensors

# Largest difference that counts as rounding, relative to the largest value of a sample.
ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}


def rounding(program: Program) -> float:
    """What counts as rounding in a program: that of the least precise type that has gradients."""
    values = [t for n in program.sited.nodes if note(n).grad for t in tensors(n.meta["val"])]
    return max(ROUNDING.get(t.dtype, 0.0) for t in values)


def rows_scaled(
    one: torch.Tensor,
    other: torch.Tensor,
    weights: torch.Tensor,
    axis: SampleAxis,
    tolerance: float,
) -> bool:
    """Whether `other` is `one` with the part of sample k multiplied by `weights[k]`."""
    parts = axis.outer, len(weights), axis.inner
    expected, actual = (
        (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t)
        .unflatten(axis.dim, parts)
        .movedim(axis.dim + 1, 0)
        .flatten(1)
        .double()
        for t in (scale_rows(one, weights, axis), other)
    )
    if not expected.numel():
        return True
    alike = (expected.isnan() & actual.isnan()) | (expected == actual)
    largest = expected.abs().nan_to_num(0.0, 0.0, 0.0).amax(1, keepdim=True)
    # Where a half type underflows, a difference of a few of its smallest numbers is none.
    smallest = torch.finfo(one.dtype).tiny * torch.finfo(one.dtype).eps
    underflow = 64 * smallest * weights.double().abs().clamp(min=1)[:, None]
    close = (expected - actual).abs() <= tolerance * largest + underflow
    return bool((alike | close).all())


def coupling_operators(
    program: Program, inputs: list[torch.Tensor], weights: torch.Tensor
) -> list[fx.Node]:
    """Operators whose output keeps samples apart although their input does not.

    Runs the captured graph under autograd, and compares the cotangents of every value under
    weights of one and under `weights`.
    """
    recorder = _Recorder(program)
    losses = recorder.run_on(inputs)
    nodes = [n for n in recorder.values if n.op != "placeholder"]
    flat = [recorder.values[n] for n in nodes]
    found = []
    for seeds in (torch.ones_like(weights), weights):
        found.append(torch.autograd.grad(losses, flat, seeds, retain_graph=True, allow_unused=True))
    columns = loss_columns(weights, program.losses_axis)
    mixed: set[fx.Node] = set()
    for node, one, other in zip(nodes, *found):
        axes = differentiable_axes(node)
        if one is None or len(axes) != 1 or axes[0] is None or len(columns) != 1:
            continue
        if not rows_scaled(one, other, columns[0], axes[0], rounding(program)):
            mixed.add(node)
    ends = {user for n in mixed for user in n.users if note(user).grad and user not in mixed}
    return [node for node in program.sited.nodes if node in ends]


class _Recorder(fx.Interpreter):
    """Keep every value that carries gradient."""

    def __init__(self, program: Program):
        super().__init__(fx.GraphModule(program.captured.gm, program.sited))
        self.values: dict[fx.Node, torch.Tensor] = {}
        self.inputs = program.captured.inputs

    def run_on(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        leaves = []
        for tensor, bound in zip(inputs, self.inputs.values(), strict=True):
            leaf = tensor.detach().clone()
            leaves.append(leaf.requires_grad_(bound.trainable))
        with torch.enable_grad():
            results, _ = self.run(*leaves, enable_io_processing=False)
        return results[0]

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        if isinstance(out, torch.Tensor) and out.requires_grad and n.op != "output":
            self.values[n] = out
        return out
