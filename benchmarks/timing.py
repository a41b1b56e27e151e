"""Time one case: build the contenders, check their Gramians, then interleave them."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from benchmarks.cases import Case
from benchmarks.checking import WrongGramian, autograd_gramian, check
from benchmarks.contenders import CONTENDERS, Contender

ROUND_SECONDS = 0.05


@dataclass(frozen=True)
class Timing:
    """One contender on one case."""

    first_seconds: float  # the first call, compilation included
    seconds: float  # the median of the rounds
    rounds: tuple[float, ...]  # seconds
    error: float | None  # of the Gramian against autograd, relative; None: computes none


def time_case(case: Case, rounds: int, device: str) -> dict[str, Timing | str]:
    """Return a timing for each contender, or in one line why there is none."""
    model, x, y = case.make(device)
    expected = autograd_gramian(model, x, y)
    weights = torch.rand(case.batch_size, device=device)
    results: dict[str, Timing | str] = {}
    runs, firsts, errors = {}, {}, {}
    for name, build in CONTENDERS.items():
        twin = copy.deepcopy(model)
        try:
            run = build(twin)
            start = perf_counter()
            gramian = run(x, y, weights)
            _wait(device)
            firsts[name] = perf_counter() - start
            errors[name] = None if gramian is None else check(gramian, expected)
        except WrongGramian as error:
            results[name] = f"wrong: {error}"
        except Exception as error:
            results[name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"
        else:
            runs[name] = (twin, run)
    del expected
    seconds = interleave(runs, (x, y, weights), rounds, device)
    for name, values in seconds.items():
        results[name] = Timing(firsts[name], median(values), tuple(values), errors[name])
    return {name: results[name] for name in CONTENDERS}


def interleave(
    runs: Mapping[str, tuple[nn.Module, Contender]],
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
        for name in names[i % len(names) :] + names[: i % len(names)]:
            seconds[name].append(_seconds(*runs[name], arguments, repeats[name], device))
    return seconds


def _seconds(
    model: nn.Module,
    run: Contender,
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
