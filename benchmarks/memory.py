"""Peak resident memory of a process that trains."""

import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.cases import Case
from benchmarks.child import Trial, arguments, in_child, prepared, verify

STEPS = 3
_SYSTEM = Path("/proc/meminfo")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Peak:
    """One contender on one case, in bytes."""

    peak_bytes: int  # of the whole process, while it steps
    rest_bytes: int  # before: libraries, parameters, their `.grad`, the batch, compiled programs
    error: float | None  # of the answer on a small batch, relative; None: computes none


def mebibytes(peak: Peak) -> float:
    """Return the figure that tables show."""
    return peak.peak_bytes / 2**20


def measure_case(case: Case, contenders: Sequence[str]) -> dict[str, Peak | str]:
    """Return the peak of each contender, or in one line why there is none."""
    results: dict[str, Peak | str] = {}
    for name in contenders:
        trial = Trial(case, name, case.batch_size, torch.get_num_threads())
        error = in_child(verify, trial)
        if not isinstance(error, str):
            found = in_child(peak, replace(trial, limit=spare()))
        else:
            found = error
        if isinstance(found, str):
            results[name] = found
        else:
            results[name] = Peak(*found, error)
    return results


def peak(trial: Trial) -> tuple[int, int]:
    """Return the peak of this process over some steps, and what it holds before, in bytes."""
    model, run = prepared(trial)
    batch = arguments(trial.case, trial.size)
    rest = restart()
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        run(*batch)
    return highest(), rest


def spare() -> int | None:
    """Return the bytes one child may take, so that none takes the machine down; None: unknown."""
    with suppress(OSError):
        for line in _SYSTEM.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(0.8 * 1024 * int(line.split()[1]))
    return None


def restart() -> int:
    """Forget the peak so far, where the system can, and return the present use in bytes."""
    with suppress(OSError):
        _CLEAR.write_text("5")  # proc(5): resets the high-water mark to the present use
    return highest()


def highest() -> int:
    """Return the most bytes that were resident at once."""
    with suppress(OSError):
        # Unlike getrusage's figure, this one doesn't start at that of the parent process.
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
