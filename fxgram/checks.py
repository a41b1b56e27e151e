"""The last word on a new program: against the eager model, and on the independence of samples."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx, nn

import passes
from fxgram.autocast import autocast
from fxgram.batch import Batch
from fxgram.calls import without_checkpoints
from fxgram.coupling import coupling_operators, rounding, rows_scaled
from fxgram.diagnosis import coupled_samples, describe
from fxgram.errors import CaptureError, UnfaithfulCapture
from fxgram.independence import check_by_exchange
from fxgram.program import Program
from fxgram.returned import Objective
from fxgram.state import frozen_state
from passes import SampleAxis


def check(program: Program, objective: Objective, batch: Batch) -> None:
    """Compare a program with the eager model and test that samples are independent.

    Costs one eager step, one compiled step and two backward passes. Leaves random state, buffers
    and `.grad` as they were.

    Raises: CoupledSamples naming the operators; UnfaithfulCapture naming the parameters.
    """
    written = _written_parameters(program)
    reference = _reference(objective, batch, written)
    if batch.size > 1 and not program.spec.loss_by_loss:
        _check_independence(program, objective.model, batch)
    _check_faithful(program, objective.model, batch, reference, written)
    if batch.size > 1 and program.spec.loss_by_loss:
        check_by_exchange(objective, batch, written.values())


def _written_parameters(program: Program) -> dict[str, torch.Tensor]:
    """Frozen parameters that the forward writes to: a momentum encoder's."""
    inputs = program.captured.inputs
    bound = [inputs[name] for name in program.last.partition.mutated]
    return {b.name: program.model.get_parameter(b.name) for b in bound if b.kind == "parameter"}


def row_weights(like: torch.Tensor) -> list[torch.Tensor]:
    """Weights like these losses, plus or minus powers of two: multiplying by them does not round.

    Of the several that are returned, some tell any two rows apart: they are the digits of the row
    number, through a permutation of the levels.
    """
    wide = torch.finfo(like.dtype).bits > 16
    powers = torch.arange(-6, 7) if wide else torch.arange(-2, 3)
    levels = torch.cat([2.0**powers, -(2.0**powers)])
    levels = levels[torch.randperm(len(levels), generator=torch.Generator().manual_seed(0))]
    numbers, found = torch.arange(like.numel()), []
    while not found or numbers.any():
        flat = levels[numbers % len(levels)]
        found.append(flat.to(device=like.device, dtype=like.dtype).reshape(like.shape))
        numbers = numbers // len(levels)
    return found


def _check_independence(program: Program, model: nn.Module, batch: Batch) -> None:
    """Cotangents under row weights r must be r[k] times those of sample k, at every site."""
    module, sites = _cotangent_module(program)
    inputs = program.last.inputs(batch.tensors)
    with torch.no_grad():
        every = row_weights(program.losses_like(batch.size))
        with frozen_state(model):
            _, *plain = module.forward(*inputs, torch.ones_like(every[0]))
        for weights in every:
            with frozen_state(model):
                _, *weighted = module.forward(*inputs, weights)
            _compare_rows(program, model, inputs, sites, plain, weighted, weights)


def _compare_rows(
    program: Program,
    model: nn.Module,
    inputs: list[torch.Tensor],
    sites: list[tuple[str, SampleAxis, int]],
    plain: list[torch.Tensor],
    weighted: list[torch.Tensor],
    weights: torch.Tensor,
) -> None:
    """Raise CoupledSamples unless the cotangents under `weights` are the plain ones, scaled."""
    columns = passes.loss_columns(weights, program.losses_axis)
    coupled = [
        place
        for (place, axis, column), one, other in zip(sites, plain, weighted)
        if not rows_scaled(one, other, columns[column], axis, rounding(program))
    ]
    if coupled:
        with frozen_state(model, tensors=True):
            named = coupling_operators(program, inputs, weights)
        raise coupled_samples(named, f"operators behind {coupled[-1]}")


def _cotangent_module(program: Program) -> tuple[fx.GraphModule, list[tuple[str, SampleAxis, int]]]:
    """A module `(inputs, seeds) -> (losses, cotangents)`, and what each cotangent belongs to.

    That is: the site, its sample axis, and which loss of a sample.
    """
    captured = {n.name: n for n in program.sited.nodes}
    graph, mapping = passes.copy_graph(program.lowered.graph)
    *_, output = graph.nodes
    results = next(reversed(program.lowered.graph.nodes)).args[0]
    outputs, sites = [results["losses"]], []
    for name, cotangents in results["cotangents"].items():
        node = captured[name]
        axes = passes.differentiable_axes(node)
        for column, found in enumerate(cotangents):
            for cotangent, axis in zip(found, axes):
                if cotangent is not None and axis is not None:
                    outputs.append(cotangent)
                    sites.append((describe(node), axis, column))
    output.args = (tuple(mapping[n] for n in outputs),)
    passes.drop_dead_nodes(graph)
    unread = next(n for n in graph.nodes if n.op == "placeholder" and n.name == passes.WEIGHTS)
    graph.erase_node(unread)
    module = fx.GraphModule(program.lowered, graph)
    return module, sites


@dataclass(frozen=True)
class _Reference:
    """What the eager model does with a batch."""

    losses: torch.Tensor
    weights: torch.Tensor  # of the losses
    gradients: dict[str, torch.Tensor | None]  # weighted, by parameter
    buffers: dict[str, torch.Tensor]  # and parameters that are written to, afterwards


def _reference(objective: Objective, batch: Batch, written: dict[str, torch.Tensor]) -> _Reference:
    """Run the eager model and plain autograd.

    Raises: CaptureError if the model itself fails.
    """
    model = objective.model
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    state = frozen_state(model, tensors=True, written=written.values())
    with state, _without_hooks(named.values()), torch.enable_grad():
        try:
            with autocast(batch.autocast), without_checkpoints():
                losses = objective(batch, _clones(batch.tensors)).losses
            weights = row_weights(losses.detach())[0]
            found = torch.autograd.grad(losses, list(named.values()), weights, allow_unused=True)
        except Exception as error:
            raise CaptureError(
                f"The eager model itself fails on this batch: {type(error).__name__}: {error}"
            ) from error
        kept = [*model.named_buffers(), *written.items()]
        buffers = {name: tensor.detach().clone() for name, tensor in kept}
    return _Reference(losses.detach(), weights, dict(zip(named, found)), buffers)


def _check_faithful(
    program: Program,
    model: nn.Module,
    batch: Batch,
    reference: _Reference,
    written: dict[str, torch.Tensor],
) -> None:
    """Losses, buffers and a weighted gradient against those of the eager model."""
    eager, expected = reference.losses, reference.gradients
    with frozen_state(model, tensors=True, written=written.values()):
        losses, gradients = program.last.gradients(_clones(batch.tensors), reference.weights)
        buffers = reference.buffers
        kept = [*model.named_buffers(), *written.items()]
        stale = [n for n, t in kept if not _close(t.detach(), buffers[n], 1e-3)]
    if stale:
        raise UnfaithfulCapture(
            f"The compiled program leaves other values in {', '.join(stale[:5])} than the eager "
            "model."
        )
    tolerance = rounding(program)
    if not _close(losses, eager, tolerance):
        raise UnfaithfulCapture(
            "The compiled program gives other losses than the eager model with the same random "
            f"state: {_sample(losses)} instead of {_sample(eager)}. The forward may "
            "depend on something that changes from call to call."
        )
    found = [g for g in expected.values() if g is not None and g.numel()]
    scale = max((float(g.abs().amax()) for g in found), default=0.0)
    # Gradients that vanish are rounding alone.
    rounding_alone = 100 * torch.finfo(eager.dtype).eps * float(reference.weights.abs().amax())
    floor = rounding_alone * max(1.0, float(eager.abs().nan_to_num(0.0, 0.0).amax()))
    wrong = {}
    for name, grad in expected.items():
        parameter = model.get_parameter(name)
        grad = torch.zeros_like(parameter) if grad is None else grad
        mine = gradients.get(name)
        mine = torch.zeros_like(parameter) if mine is None else mine
        if not _close(mine, grad, tolerance, 1e-3 * scale, floor):
            wrong[name] = float((mine - grad).abs().amax())
    if wrong:
        worst = sorted(wrong, key=lambda n: -wrong[n])
        raise UnfaithfulCapture(
            "The gradients of the compiled program differ from those of the eager model for "
            f"{', '.join(worst[:5])} (largest difference {wrong[worst[0]]:.2e}). Something in the "
            "forward was lost when it was captured, a change of tensors that autograd does not "
            "see, say; or a hook or custom backward is not linear: it clips the gradient."
        )


def _clones(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Copies of tensors; those that are one object stay one."""
    copies = {id(t): t.clone() for t in tensors}
    return tuple(copies[id(t)] for t in tensors)


def _close(
    a: torch.Tensor, b: torch.Tensor, rtol: float, least: float = 0.0, floor: float = 1e-30
) -> bool:
    """Whether two tensors differ by `rtol` of the largest value (at least `least`), or `floor`."""
    if not (b.is_floating_point() or b.is_complex()):
        return torch.equal(a, b)
    if a.shape != b.shape:
        return False
    if not a.numel():
        return True
    finite = b[b.isfinite()].abs()
    largest = float(finite.amax()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=rtol * max(largest, least) + floor, equal_nan=True)


def _sample(values: torch.Tensor) -> list[float]:
    return [round(v, 6) for v in values.flatten()[:3].tolist()]


@contextmanager
def _without_hooks(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Set hooks on parameters aside: the eager gradient is for comparison alone."""
    hooked = [(p, p._backward_hooks) for p in parameters if p._backward_hooks]
    for parameter, _ in hooked:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, hooks in hooked:
            parameter._backward_hooks = hooks
