"""What users say about memory and time, checked."""

import re
from dataclasses import dataclass
from typing import Any

from fxgram.errors import InvalidArgument


@dataclass(frozen=True)
class Options:
    """What users say about memory and time."""

    # bytes beyond the ordinary forward and backward; None: half of those, or a little
    memory_budget: int | None = None
    retain: str = "auto"
    plan: str = "cost"

    @staticmethod
    def of(memory_budget: Any, retain: Any, plan: Any) -> "Options":
        """Check the options of `fxgram.compile`.

        Raises: InvalidArgument.
        """
        _one_of("retain", retain, ("auto", "cotangents", "recompute"))
        _one_of("plan", plan, ("cost", "measure"))
        return Options(_bytes(memory_budget), retain, plan)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise InvalidArgument(f"{name}={value!r}: expected one of {listed}.")


_UNITS = {"B": 1, **{f"{p}B": 1000**n for n, p in enumerate("kMGT", 1)},
          **{f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)}}  # fmt: skip


def _bytes(budget: Any) -> int | None:
    """Bytes from a number, or from a text such as "2GiB" or "500 MB".

    Raises: InvalidArgument.
    """
    if budget is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?i?B)\s*", str(budget))
    if found and found[2] in _UNITS:
        return int(float(found[1]) * _UNITS[found[2]])
    if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
        return budget
    raise InvalidArgument(
        f"memory_budget={budget!r}: expected bytes, or a text such as '2GiB' (B, kB, "
        "MB, GB, TB, KiB, MiB, GiB, TiB)."
    )
