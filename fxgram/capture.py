"""Capture model and objective as one graph, faithfully or not at all."""

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxgram.batch import Batch
from fxgram.capture_errors import explained
from fxgram.captured import Captured, first_names
from fxgram.errors import CaptureError, FxgramError
from fxgram.export import (
    export_static,
    export_symbolic,
    quiet,
    sample_range,
    serves,
    symbolic_len,
)
from fxgram.returned import Objective
from fxgram.state import (
    frozen_state,
    plain_attributes,
    python_randomness_unused,
    set_attributes,
)
from fxgram.trace import trace
from fxgram.wrapper import Wrapper
from passes import Input, source_line

# A size that hardly any other dim of a model has, so that no comparison of sizes confuses the two.
_SAMPLE_COUNTS = (61, 67, 71, 73, 79, 83, 89, 97)


_SIZED = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def capture(objective: Objective, batch: Batch, *, static: bool = False) -> Captured:
    """Capture the objective, with a symbolic number of samples unless there is one.

    With `static`, for the sizes of this batch alone. Where the objective differentiates inside and
    fixes the number of samples, that is so as well.

    Raises: CaptureError with the user's line and the way out.
    """
    model, wrapper = objective.model, Wrapper(objective, batch)
    static = static or batch.size < 2
    with quiet(), frozen_state(model), python_randomness_unused(), symbolic_len():
        before = plain_attributes(model)
        captured = _captured(wrapper, batch, static)
        after = wrapper.watch.plain_after.items()
        changed = {n: value for n, value in after if before.get(n, value) != value}
        if changed:
            set_attributes(model, changed)
            if str(_captured(wrapper, batch, static).gm.graph) != str(captured.gm.graph):
                raise CaptureError(
                    f"The forward changes {', '.join(changed)} and then computes something else on "
                    "the next call. Plain attributes are read when a program is compiled: keep "
                    "what changes in a buffer."
                )
    _refuse_values(captured.gm)
    return captured


def _captured(wrapper: Wrapper, batch: Batch, static: bool) -> Captured:
    """Export, or trace below autograd if export met a derivative."""
    if not wrapper.watch.differentiates:
        try:
            captured = _bound(_export(wrapper, batch, static), wrapper, batch)
        except Exception:
            if not wrapper.watch.differentiates:
                raise
        else:
            if not wrapper.watch.differentiates:
                return captured
    try:
        if not static:
            try:
                return trace(wrapper, batch, _unusual_size(wrapper, batch))
            except FxgramError:
                raise
            except Exception:  # whatever can't be a symbol
                pass
        return trace(wrapper, batch, None)
    except FxgramError:
        raise
    except Exception as error:
        raise explained(error, wrapper.watch.loop, None) from error


def _export(wrapper: Wrapper, batch: Batch, static: bool) -> torch.export.ExportedProgram:
    if static:
        return export_static(wrapper, batch)
    program = export_symbolic(wrapper, batch, _unusual_size(wrapper, batch))
    return program if serves(program, batch) else export_symbolic(wrapper, batch, batch.size)


def _unusual_size(wrapper: Wrapper, batch: Batch) -> int:
    seen = {n for t in (*batch.tensors, *wrapper.model.parameters()) for n in t.shape}
    return next((n for n in _SAMPLE_COUNTS if n not in seen), _SAMPLE_COUNTS[0])


def _refuse_values(gm: fx.GraphModule) -> None:
    """Raise if a size or a number was read from the values of a tensor."""
    for node in gm.graph.nodes:
        values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        if any(free_unbacked_symbols(v) for v in values if isinstance(v, _SIZED)):
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
            size = None if dim is None else placeholders[name].meta["val"].shape[dim]
            if isinstance(size, torch.SymInt):
                samples = size.node.expr
        else:
            raise CaptureError(f"The model holds an object that is no tensor: {spec.target}.")
    sizes = (batch.size, batch.size) if samples is None else sample_range(program)
    calls = tuple(wrapper.watch.calls.targets)
    return Captured(
        program.graph_module, inputs, constants, samples, sizes, wrapper.watch.aux, calls=calls
    )
