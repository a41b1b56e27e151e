"""Draw the ratios of a comparison as bars, and how figures grow as lines."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import UNIT, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

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
    """Write a group of bars for each row: the ratios to SGD, up or down from the line at 1."""
    from matplotlib.figure import Figure

    rows = comparison.rows
    drawn = {
        name: [(i, ratio) for i, row in enumerate(rows) if (ratio := row.ratio(name))]
        for name in comparison.contenders
        if name != UNIT
    }
    drawn = {name: ratios for name, ratios in drawn.items() if ratios}
    figure = Figure(figsize=(2.4 + 0.3 * len(rows) * (len(drawn) + 1), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(drawn))
    for shift, (name, ratios) in enumerate(drawn.items()):
        places = [i + (shift - (len(drawn) - 1) / 2) * width for i, _ in ratios]
        heights = [ratio - 1 for _, ratio in ratios]
        axes.bar(places, heights, width, bottom=1, color=COLOURS[name], label=name)
        for place, (_, ratio) in zip(places, ratios):
            above = "bottom" if ratio >= 1 else "top"
            axes.text(place, ratio, f"{ratio:.3g}", ha="center", va=above, fontsize=7)
    axes.axhline(1, color=COLOURS[UNIT], linewidth=1)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    _plain_ticks(axes.yaxis)
    axes.set_xticks(range(len(rows)), [row.leading[0] for row in rows], rotation=30, ha="right")
    _finish(axes, f"{label}, over SGD's")
    figure.savefig(path)


def draw_lines(path: Path, comparisons: Mapping[str, Mapping[str, Comparison]]) -> None:
    """Write a grid of plots, whose ranges above a factor of 5 are logarithmic.

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
            every = []
            for name in comparison.contenders:
                sizes, values = _points(comparison, name)
                axes.plot(sizes, values, "o-", markersize=3, color=COLOURS[name], label=name)
                every += values
            axes.set(xscale="log", xlabel=axis)
            axes.set_xticks([int(row.leading[-1]) for row in comparison.rows], minor=False)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
            if every and max(every) > 5 * min(every):
                axes.set_yscale("log")
                _plain_ticks(axes.yaxis)
            else:
                axes.set_ylim(bottom=0)
            _finish(axes, label)
    figure.savefig(path)


def _points(comparison: Comparison, contender: str) -> tuple[list[int], list[float]]:
    found = [(int(row.leading[-1]), row.figures.get(contender)) for row in comparison.rows]
    known = [(size, figure) for size, figure in found if isinstance(figure, float)]
    return [size for size, _ in known], [figure for _, figure in known]


def _plain_ticks(axis: "Axis") -> None:
    """Write 0.5, 1, 2, 5, 10 rather than powers of ten."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def _finish(axes: "Axes", label: str) -> None:
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
