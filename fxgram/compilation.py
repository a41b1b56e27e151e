"""Compile one program: capture, passes, checks, and what users are told about it."""

import logging

import torch

from fxgram.batch import Batch
from fxgram.capture import capture
from fxgram.captured import Captured
from fxgram.checks import check as check_program
from fxgram.diagnosis import raise_for, untraceable
from fxgram.errors import FxgramError
from fxgram.models import refuse_model
from fxgram.options import Options
from fxgram.program import Program
from fxgram.returned import Objective
from passes import PassError

_log = logging.getLogger("fxgram")


def compile_program(
    objective: Objective,
    batch: Batch,
    *,
    coupled: bool,
    cross_terms: bool,
    check: bool,
    options: Options,
) -> Program:
    """Compile for a batch like this one; `coupled`: losses may share samples.

    Raises: FxgramError, see `fxgram.errors`.
    """
    refuse_model(objective.model)
    name = type(objective.model).__name__
    _log.info("compiling %s", name)
    with torch.inference_mode(False):
        program = _program(objective, batch, coupled, cross_terms, options)
        if check:
            check_program(program, objective, batch)
        if program.unproven and not coupled:
            # Samples were apart on this batch, which says nothing of the next one.
            program = _loss_by_loss(objective, batch, cross_terms, options)
            if check:
                check_program(program, objective, batch)
    captured = program.captured
    low, high = captured.sizes
    if coupled:
        kind = "for these sizes alone: batch_dim=None"
    elif batch.size == 1:
        kind = "for 1 sample"
    elif low == high:
        kind = f"for {low} samples alone, every loss with a backward of its own: {_why(captured)}"
    else:
        kind = f"for {batch.size} samples (and any other number)"
    _log.info("compiled %s %s", name, kind)
    if not cross_terms:
        _warn_of_reuse(program)
    return program


def _program(
    objective: Objective, batch: Batch, coupled: bool, cross_terms: bool, options: Options
) -> Program:
    """A program with a sample axis; where it can't be followed, with a backward for each loss."""
    captured, static = capture(objective, batch), False
    while True:
        static = static or (captured.samples is None and batch.size > 1)
        try:
            return Program(
                captured, objective.model, batch.size,
                coupled=coupled, loss_by_loss=coupled or static, cross_terms=cross_terms,
                options=options,
            )  # fmt: skip
        except PassError as error:
            # Sizes prove little where `jacrev` computes the zeros between samples.
            unclear = (
                ("uncovered", "coupled", "losses") if captured.differentiated else ("uncovered",)
            )
            if coupled or static or error.kind not in unclear:
                raise_for(error, captured)
        except FxgramError:
            raise
        except Exception as error:
            raise untraceable(error) from error
        captured, static = capture(objective, batch, static=True), True


def _loss_by_loss(
    objective: Objective, batch: Batch, cross_terms: bool, options: Options
) -> Program:
    """A program for the sizes of this batch in which every loss has a backward of its own."""
    captured = capture(objective, batch, static=True)
    try:
        return Program(
            captured, objective.model, batch.size,
            coupled=False, loss_by_loss=True, cross_terms=cross_terms, options=options,
        )  # fmt: skip
    except PassError as error:
        raise_for(error, captured)


def _why(captured: Captured) -> str:
    if captured.differentiated:
        return "derivatives inside of the objective fix the sizes or mix the samples"
    return "the samples can't be followed through the graph, or an operator can mix them"


def _warn_of_reuse(program: Program) -> None:
    counts: dict[str, int] = {}
    for contribution in program.contributions:
        for use in contribution.uses:
            counts[use.parameter] = counts.get(use.parameter, 0) + 1
    reused = {name: n for name, n in counts.items() if n > 1}
    if reused:
        listed = ", ".join(f"{name} ({n} uses)" for name, n in reused.items())
        traced = " Uses are counted as traced: a derivative inside of the objective uses parameters"
        _log.warning(
            "fxgram: parameters used more than once: %s. The Gramian leaves out the cross terms "
            "between their uses, off its diagonal as well: pass cross_terms=True for J Jᵀ.%s",
            listed,
            f"{traced} again." if program.captured.differentiated else "",
        )
