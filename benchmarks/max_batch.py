"""The largest batch that trains within a limit on a process's memory."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.cases import Case
from benchmarks.child import SMALL, Trial, arguments, in_child, prepared, verify

STEPS = 2
_UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Largest:
    """One contender on one case."""

    batch_size: int  # fits; 0: not even `SMALL`
    too_large: int  # the smallest batch size seen not to fit
    reason: str  # what that batch met
    error: float | None  # of the answer on a small batch, relative; None: computes none


def parse_bytes(text: str) -> int:
    """Return the number of bytes that "4GiB", "500 MB" or "1e9" stands for.

    Raises:
        ValueError: It is no such text.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if not found or found[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 4GiB or 500MB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def search_case(
    case: Case, contenders: Sequence[str], limit: int, precision: float
) -> dict[str, Largest | str]:
    """Return the largest batch of each contender, or in one line why there is none."""
    results: dict[str, Largest | str] = {}
    start = case.batch_size
    for name in contenders:
        trial = Trial(case, name, SMALL, torch.get_num_threads())
        error = in_child(verify, trial)  # without a limit: a failure here is none of memory
        if isinstance(error, str):
            results[name] = error
            continue
        trial = replace(trial, limit=limit)
        low, high, reason = bisect(
            lambda size, trial=trial: in_child(fits, replace(trial, size=size)), start, precision
        )
        results[name] = Largest(low, high, reason, error)
        start = max(low, case.batch_size)
    return results


def bisect(
    why_not: Callable[[int], str | None], start: int, precision: float
) -> tuple[int, int, str]:
    """Return the largest size that fits, the smallest one that doesn't, and why it doesn't.

    Doubles or halves from `start`, then bisects until the two differ by `precision` of the lower
    one, or by 1.

    Args:
        why_not: None for a size that fits.
    """
    low, high, reason = 0, 0, ""
    size = start
    while not high or (not low and size >= SMALL):
        found = why_not(size)
        if found is None:
            low, size = size, 2 * size
        else:
            high, reason, size = size, found, size // 2
    while low and high - low > max(1, precision * low):
        size = (low + high) // 2
        found = why_not(size)
        if found is None:
            low = size
        else:
            high, reason = size, found
    return low, high, reason


def fits(trial: Trial) -> None:
    """Run some steps in this process under its limit; raises, or dies, if they don't fit."""
    model, run = prepared(trial)
    batch = arguments(trial.case, trial.size)
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        run(*batch)
