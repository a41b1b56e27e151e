"""Draw the ratios of a comparison as bars, and how figures grow as lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import UNIT, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# One colour for each contender, whichever of them are drawn (Okabe & Ito's palette).
COLOURS = {
    "SGD": "#666666",
    "fxgram": "#0072B2",
    "fxgram, recompute": "#56B4E9",
    "fxgram, diagonal": "#009E73",
    "TorchJD": "#D55E00",
    "Opacus": "#E69F00",
    "vmap(grad)": "#CC79A7",
    "hand-written": "#000000",
}


def draw_bars(path: Path, comparison: Comparison, label: str) -> None:
    """Write a group of bars for each row: the ratios to SGD, whose own is the line at 1."""
    from matplotlib.figure import Figure

    others = [name for name in comparison.contenders if name != UNIT]
    figure = Figure(figsize=(2 + 0.9 * len(comparison.rows), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(others))
    for i, name in enumerate(others):
        ratios = [row.ratio(name) for row in comparison.rows]
        places = [j + (i - (len(others) - 1) / 2) * width for j, r in enumerate(ratios) if r]
        bars = axes.bar(places, [r for r in ratios if r], width, color=COLOURS[name], label=name)
        axes.bar_label(bars, fmt="%.2g", fontsize=7)
    axes.axhline(1, color=COLOURS[UNIT], linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(comparison.rows)), [row.leading[0] for row in comparison.rows])
    axes.tick_params(axis="x", rotation=30)
    _finish(axes, f"{label}, over SGD's")
    figure.savefig(path)


def draw_lines(path: Path, comparisons: Mapping[str, Mapping[str, Comparison]]) -> None:
    """Write a grid of plots, both axes logarithmic.

    Args:
        path: the file.
        comparisons: by what is measured (a row of the grid), then by what grows (a column); the
            last leading cell of a row is the size.
    """
    from matplotlib.figure import Figure

    columns = max(len(by_axis) for by_axis in comparisons.values())
    size = (3.2 * columns, 2.8 * len(comparisons))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(comparisons), columns, squeeze=False)
    for places, (label, by_axis) in zip(grid, comparisons.items()):
        for axes, (axis, comparison) in zip(places, by_axis.items()):
            for name in comparison.contenders:
                points = _points(comparison, name)
                axes.plot(*points, marker="o", markersize=3, color=COLOURS[name], label=name)
            axes.set(xscale="log", yscale="log", xlabel=axis)
            _finish(axes, label)
    figure.savefig(path)


def _points(comparison: Comparison, contender: str) -> tuple[Sequence[int], Sequence[float]]:
    found = [(int(row.leading[-1]), row.figures.get(contender)) for row in comparison.rows]
    known = [(size, figure) for size, figure in found if isinstance(figure, float)]
    return [size for size, _ in known], [figure for _, figure in known]


def _finish(axes: "Axes", label: str) -> None:
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
