"""Capture model and objective as one graph, faithfully or not at all."""

from collections.abc import Callable
from dataclasses import dataclass

import sympy
import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxgram.batch import Batch
from fxgram.errors import CaptureError
from fxgram.export import (
    export_static,
    export_symbolic,
    quiet,
    sample_range,
    serves,
    symbolic_len,
)
from fxgram.state import (
    frozen_state,
    plain_attributes,
    python_randomness_unused,
    set_attributes,
)
from fxgram.wrapper import Wrapper
from passes import Input, source_line

# A size that hardly any other dim of a model has, so that no comparison of sizes confuses the two.
_SAMPLE_COUNTS = (61, 67, 71, 73, 79, 83, 89, 97)


@dataclass(frozen=True)
class Captured:
    """The graph of one forward: placeholders are parameters, buffers, constants, then the batch."""

    gm: fx.GraphModule
    inputs: dict[str, Input]  # by placeholder name
    constants: dict[str, torch.Tensor]  # by placeholder name, the objective's own tensors
    samples: sympy.Expr | None  # symbol of K; None: captured for one sample
    calls: tuple[Callable, ...]  # what its marker operators stand for, by their keys
    sizes: tuple[int, int]  # least and largest K that the graph holds for


def capture(model: nn.Module, objective: Callable | None, batch: Batch) -> Captured:
    """Export `objective(model, *batch)`, with a symbolic number of samples unless there is one.

    Raises: CaptureError with the user's line and the way out.
    """
    wrapper = Wrapper(model, objective, batch)
    with quiet(), frozen_state(model), python_randomness_unused(), symbolic_len():
        before = plain_attributes(model)
        program = _export(wrapper, batch)
        after = wrapper.watch.plain_after.items()
        changed = {n: value for n, value in after if before.get(n, value) != value}
        if changed:
            set_attributes(model, changed)
            if str(_export(wrapper, batch).graph) != str(program.graph):
                raise CaptureError(
                    f"The forward changes {', '.join(changed)} and then computes something else on "
                    "the next call. Plain attributes are read when a program is compiled: keep "
                    "what changes in a buffer."
                )
    _refuse_values(program)
    return _bound(program, wrapper, batch)


def _export(wrapper: Wrapper, batch: Batch) -> torch.export.ExportedProgram:
    if batch.size < 2:
        return export_static(wrapper, batch)
    seen = {n for t in (*batch.tensors, *wrapper.model.parameters()) for n in t.shape}
    usual = next((n for n in _SAMPLE_COUNTS if n not in seen), _SAMPLE_COUNTS[0])
    program = export_symbolic(wrapper, batch, usual)
    return program if serves(program, batch) else export_symbolic(wrapper, batch, batch.size)


def _refuse_values(program: torch.export.ExportedProgram) -> None:
    """Raise if a size or a number was read from the values of a tensor."""
    for node in program.graph.nodes:
        if free_unbacked_symbols(node.meta.get("val")):
            raise CaptureError(
                "A size or a number is read from the values of a tensor, at "
                f"{source_line(node)}. Use torch.where or a mask instead of `.item()` and boolean "
                "indexing."
            )


def _bound(program: torch.export.ExportedProgram, wrapper: Wrapper, batch: Batch) -> Captured:
    """Say what each placeholder stands for."""
    model = wrapper.model
    canonical = first_names(model)
    inputs, constants, samples = {}, {}, None
    names = iter(zip(batch.names, batch.dims))
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, (spec.target or "").removeprefix("model.")
        if spec.kind == InputKind.PARAMETER:
            parameter = model.get_parameter(target)
            inputs[name] = Input("parameter", canonical[id(parameter)], parameter.requires_grad)
        elif spec.kind == InputKind.BUFFER:
            inputs[name] = Input("buffer", target)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            inputs[name] = Input("constant", spec.target)
            constants[name] = program.constants[spec.target]
        elif spec.kind == InputKind.USER_INPUT:
            written, dim = next(names)
            inputs[name] = Input("batch", written)
            if dim is not None and batch.size > 1:
                samples = placeholders[name].meta["val"].shape[dim].node.expr
        else:
            raise CaptureError(f"The model holds an object that is no tensor: {spec.target}.")
    sizes = (1, 1) if samples is None else sample_range(program)
    calls = tuple(wrapper.watch.calls.targets)
    return Captured(program.graph_module, inputs, constants, samples, calls, sizes)


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every parameter, by identity: tied weights share it."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names
