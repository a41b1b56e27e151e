"""Print the timings as a table and as Markdown, and write them as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.contenders import CONTENDERS
from benchmarks.timing import Timing

Results = Mapping[str, Mapping[str, Timing | str]]  # case -> contender -> timing
HEADER = (
    *("model", "K", "sample"),
    *(f"{name} ms" for name in CONTENDERS),
    *(f"{name} / SGD" for name in CONTENDERS if name != "SGD"),
)


def row(name: str, timings: Mapping[str, Timing | str]) -> tuple[str, ...]:
    """Return the cells of one case: medians in milliseconds, then ratios to SGD."""
    case = CASES[name]
    base = timings["SGD"]
    ratios = [
        f"{t.seconds / base.seconds:.2f}"
        if isinstance(t, Timing) and isinstance(base, Timing)
        else "-"
        for contender, t in timings.items()
        if contender != "SGD"
    ]
    medians = [
        f"{1000 * t.seconds:.4g}" if isinstance(t, Timing) else t.partition(":")[0]
        for t in timings.values()
    ]
    return (name, str(case.batch_size), "x".join(map(str, case.shape)), *medians, *ratios)


def print_report(console: Console, results: Results, machine: Mapping) -> None:
    """Print a table, the failures in full, and the same as Markdown."""
    table = Table(box=SIMPLE_HEAD)
    shown = [i for i, header in enumerate(HEADER) if header != "sample"]  # to fit 80 columns
    for i in shown:
        table.add_column(HEADER[i], justify="right" if i else "left", no_wrap=not i)
    for name, timings in results.items():
        cells = row(name, timings)
        table.add_row(*(cells[i] for i in shown))
    console.print(table)
    for name, timings in results.items():
        for contender, timing in timings.items():
            if isinstance(timing, str):
                console.print(f"{name}, {contender}: {timing}", markup=False, highlight=False)
    print(markdown(results, machine))


def markdown(results: Results, machine: Mapping) -> str:
    """Return the table and a line about the machine as Markdown."""
    lines = ["| " + " | ".join(HEADER) + " |"]
    lines.append("|---" + "|---:" * (len(HEADER) - 1) + "|")
    lines += ["| " + " | ".join(row(n, timings)) + " |" for n, timings in results.items()]
    about = ", ".join(f"{key} {value}" for key, value in machine.items())
    return "\n".join([*lines, "", f"Medians, contenders interleaved. {about}."])


def write_json(path: Path, results: Results, machine: Mapping) -> None:
    """Write every round of every contender."""
    cases = {
        name: {c: dataclasses.asdict(t) if isinstance(t, Timing) else t for c, t in timings.items()}
        for name, timings in results.items()
    }
    text = json.dumps({"machine": dict(machine), "cases": cases}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
