"""Modules that an emitted graph calls where no rule applies: they run autograd themselves."""

import warnings

import torch
from torch import Tensor, fx, nn

from passes.annotations import SampleAxis
from passes.targets import has_foreign_backward


class RegionPullback(nn.Module):
    """Pull per-sample gradients at sites back through arithmetic on parameters.

    Inputs: values of the uses, other operands of the region, one `[k, *value]` for each site.
    Returns one `[k, *parameter]` for each use; cost: one batched backward through the region, or
    one for each sample if a backward in it is the user's own.
    """

    def __init__(self, region: fx.GraphModule, uses: int, sites: int):
        super().__init__()
        self.region, self.uses, self.sites = region, uses, sites
        self.loop = any(map(has_foreign_backward, region.graph.nodes))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        operands, at_sites = inputs[: -self.sites], inputs[-self.sites :]
        with torch.inference_mode(False), torch.enable_grad():
            leaves, ends = _rerun(self.region, operands, self.uses)
            seeds = [_normal(j) for j in at_sites]
            grads = batched_gradients(ends, leaves, seeds, self.loop)
        rows = at_sites[0].shape[0]
        return _filled(grads, leaves, rows)


class PerSampleVJP(nn.Module):
    """Per-sample gradients of uses by one backward of their operators for each sample.

    Inputs: values of the uses, other operands, one cotangent for each output of a site.
    Returns one `[k, *parameter]` for each use; cost: k times the backward of these operators.
    """

    def __init__(self, body: fx.GraphModule, uses: int, axes: tuple[SampleAxis, ...]):
        super().__init__()
        self.body, self.uses, self.axes = body, uses, axes

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        operands, cotangents = inputs[: -len(self.axes)], inputs[-len(self.axes) :]
        with torch.inference_mode(False), torch.enable_grad():
            leaves, ends = _rerun(self.body, operands, self.uses)
            reached = [at for at, end in enumerate(ends) if end.requires_grad]
            per_row = [
                _vjp([ends[at] for at in reached], leaves, [masked[at] for at in reached])
                for masked in _masks([_normal(c) for c in cotangents], self.axes)
            ]
        rows = len(per_row)
        stacked = [None if g[0] is None else torch.stack(g) for g in zip(*per_row)]
        return _filled(stacked, leaves, rows)


def _vjp(ends: list[Tensor], leaves: list[Tensor], cotangents: list[Tensor]):
    if not ends:
        return [None] * len(leaves)
    return torch.autograd.grad(ends, leaves, cotangents, retain_graph=True, allow_unused=True)


def batched_gradients(
    ends: list[Tensor], leaves: list[Tensor], seeds: list[Tensor], loop: bool
) -> list[Tensor | None]:
    """Gradients `[m, *leaf]` of the ends for m seeds each, stacked; None where nothing is reached.

    With `loop` one backward after the other, else one that vmap batches.
    """
    if not loop:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = torch.autograd.grad(
                ends, leaves, seeds, is_grads_batched=True, allow_unused=True, retain_graph=True
            )
        return list(found)
    rows = [
        torch.autograd.grad(ends, leaves, row, retain_graph=True, allow_unused=True)
        for row in zip(*(seed.unbind(0) for seed in seeds))
    ]
    return [None if grads[0] is None else torch.stack(grads) for grads in zip(*rows)]


def _rerun(body: fx.GraphModule, operands: tuple[Tensor, ...], uses: int):
    """Run `body` under autograd, the first `uses` operands as leaves."""
    leaves = [_normal(p).detach().requires_grad_() for p in operands[:uses]]
    others = [_normal(o).detach() if isinstance(o, Tensor) else o for o in operands[uses:]]
    return leaves, list(body(*leaves, *others))


def _normal(value: Tensor) -> Tensor:
    """Autograd cannot save tensors made in inference mode."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def _masks(cotangents: list[Tensor], axes: tuple[SampleAxis, ...]):
    """For each sample, the cotangents with all other samples set to zero."""
    first = axes[0]
    if first.dim is None:
        yield cotangents
        return
    rows = cotangents[0].shape[first.dim] // (first.outer * first.inner)
    for k in range(rows):
        masked = []
        for cotangent, axis in zip(cotangents, axes):
            parts = cotangent.unflatten(axis.dim, (axis.outer, rows, axis.inner))
            only = torch.zeros_like(parts)
            only.select(axis.dim + 1, k).copy_(parts.select(axis.dim + 1, k))
            masked.append(only.reshape(cotangent.shape))
        yield masked


def _filled(grads, leaves: list[Tensor], rows: int) -> tuple[Tensor, ...]:
    return tuple(
        p.new_zeros(rows, *p.shape) if g is None else g.detach() for g, p in zip(grads, leaves)
    )
