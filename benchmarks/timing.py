"""Time one case: build the contenders, check their answers, then interleave them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from benchmarks.cases import Case
from benchmarks.checking import Reference
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.contract import Run
from benchmarks.failures import one_line

ROUND_SECONDS = 0.05


@dataclass(frozen=True)
class Timing:
    """One contender on one case."""

    first_seconds: float  # the first call, compilation included
    seconds: float  # the median of the rounds
    rounds: tuple[float, ...]  # seconds
    error: float | None  # of the answer against autograd, relative; None: computes none


def milliseconds(timing: Timing) -> float:
    """Return the figure that tables show."""
    return 1000 * timing.seconds


def time_case(
    case: Case, contenders: Sequence[str], rounds: int, device: str = "cpu"
) -> dict[str, Timing | str]:
    """Return a timing for each contender, or in one line why there is none."""
    model, batch = case.model(device), case.batch(case.batch_size, device)
    reference = Reference.of(model, case.objective, batch)
    arguments = (*batch, torch.rand(case.batch_size, device=device))
    results: dict[str, Timing | str] = {}
    runs, firsts, errors = {}, {}, {}
    for name in contenders:
        twin = copy.deepcopy(model)
        try:
            run = CONTENDERS[name](twin, case.objective)
            start = perf_counter()
            answer, weights = run(*arguments)
            _wait(device)
            firsts[name] = perf_counter() - start
            errors[name] = None if answer is None else reference.check(answer, weights, twin)
        except Exception as error:
            results[name] = one_line(error)
        else:
            runs[name] = (twin, run)
    del reference
    seconds = interleave(runs, arguments, rounds, device)
    for name, values in seconds.items():
        results[name] = Timing(firsts[name], median(values), tuple(values), errors[name])
    return {name: results[name] for name in contenders}


def interleave(
    runs: Mapping[str, tuple[nn.Module, Run]],
    arguments: tuple[Tensor, Tensor, Tensor],
    rounds: int,
    device: str,
) -> dict[str, list[float]]:
    """Run all contenders once a round, each round in another order; the first one warms up.

    A slow phase of the machine then hits all of them alike. Short steps are repeated within a
    round until they fill `ROUND_SECONDS`. Returns the seconds of one step, for each round.
    """
    repeats = {
        name: max(1, int(ROUND_SECONDS / _seconds(*run, arguments, 1, device)))
        for name, run in runs.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for i in range(rounds):
        shift = i % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            seconds[name].append(_seconds(*runs[name], arguments, repeats[name], device))
    return seconds


def _seconds(
    model: nn.Module,
    run: Run,
    arguments: tuple[Tensor, Tensor, Tensor],
    repeats: int,
    device: str,
) -> float:
    """Return the mean seconds of a step, `zero_grad` included."""
    _wait(device)
    start = perf_counter()
    for _ in range(repeats):
        model.zero_grad()
        run(*arguments)
    _wait(device)
    return (perf_counter() - start) / repeats


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
