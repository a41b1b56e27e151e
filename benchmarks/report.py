"""Print figures as tables and as Markdown, and write them as JSON."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

T = TypeVar("T")
UNIT = "SGD"  # the contender that ratios are to


@dataclass(frozen=True)
class Row:
    """The figures of one case."""

    leading: tuple[str, ...]  # cells that say which case
    figures: Mapping[str, float | str]  # by contender; text says why there is none

    def ratio(self, contender: str, to: str = UNIT) -> float | None:
        """Return one contender's figure over another's, or None if either has none."""
        figure, base = self.figures.get(contender), self.figures.get(to)
        if not isinstance(figure, float) or not isinstance(base, float) or not base:
            return None
        return figure / base


@dataclass(frozen=True)
class Comparison:
    """A table of contenders: a figure each, then ratios to SGD."""

    leading: tuple[str, ...]  # headers of the rows' leading cells
    unit: str  # of the figures
    rows: Sequence[Row]

    @property
    def contenders(self) -> list[str]:
        """Return all that any row has, in their order."""
        return list(dict.fromkeys(name for row in self.rows for name in row.figures))

    def header(self) -> tuple[str, ...]:
        """Return the heads of all columns."""
        others = [name for name in self.contenders if name != UNIT]
        figures = (f"{name} {self.unit}" for name in self.contenders)
        return (*self.leading, *figures, *(f"{name} / {UNIT}" for name in others))

    def cells(self, row: Row) -> tuple[str, ...]:
        """Return the texts of one row; a contender without a figure has one word."""
        numbers = (_number(row.figures[name]) for name in self.contenders)
        ratios = (_ratio(row.ratio(name)) for name in self.contenders if name != UNIT)
        return (*row.leading, *numbers, *ratios)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        header = self.header()
        lines = [header, *(self.cells(row) for row in self.rows)]
        text = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([text[0], "|---" + "|---:" * (len(header) - 1) + "|", *text[1:]])


def figures(results: Mapping[str, T | str], read: Callable[[T], float]) -> dict[str, float | str]:
    """Return the number in each result, or the text in its place."""
    return {
        name: found if isinstance(found, str) else float(read(found))
        for name, found in results.items()
    }


def geometric_mean(ratios: Iterable[float | None]) -> tuple[float, int] | None:
    """Return the mean of the ratios there are, and how many; None if there are none."""
    found = [ratio for ratio in ratios if ratio is not None]
    return (prod(found) ** (1 / len(found)), len(found)) if found else None


def show(console: Console, comparison: Comparison) -> None:
    """Print a line for each case and contender, which fits a narrow screen; failures in full."""
    table = Table(box=SIMPLE_HEAD)
    # The shapes of samples are left to the Markdown.
    kept = [i for i, head in enumerate(comparison.leading) if head != "sample"]
    for i in kept:
        table.add_column(comparison.leading[i], justify="right" if i else "left")
    table.add_column("contender")
    table.add_column(comparison.unit, justify="right")
    table.add_column(f"/ {UNIT}", justify="right")
    failures = []
    for row in comparison.rows:
        leading = [row.leading[i] for i in kept]
        for contender, figure in row.figures.items():
            ratio = row.ratio(contender)
            table.add_row(*leading, contender, _number(figure), _ratio(ratio))
            leading = [""] * len(kept)
            if isinstance(figure, str):
                failures.append(f"{', '.join(row.leading)}, {contender}: {figure}")
        table.add_section()
    console.print(table)
    for line in failures:
        print(line)


def _number(figure: float | str) -> str:
    return f"{figure:.4g}" if isinstance(figure, float) else figure.partition(":")[0]


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def about(machine: Mapping) -> str:
    """Return the line about the machine and the versions."""
    return ", ".join(f"{key} {value}" for key, value in machine.items()) + "."


def write_json(path: Path, figures: Mapping, machine: Mapping) -> None:
    """Write everything that was measured, every round of every contender included."""
    text = json.dumps({"machine": machine, **figures}, indent=2, default=dataclasses.asdict)
    path.write_text(text + "\n", encoding="utf-8")
