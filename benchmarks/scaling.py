"""Time and peak memory as one size grows and the others stay."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.cases import Case
from benchmarks.memory import Peak, measure_case, mebibytes
from benchmarks.models.small import TransformerClassifier, mlp
from benchmarks.report import Comparison, Row, figures
from benchmarks.timing import Timing, milliseconds, time_case


@dataclass(frozen=True)
class Family:
    """Models of one kind in many sizes."""

    case: Callable[..., Case]  # of the sizes, by name
    sizes: Mapping[str, int]  # those that stay
    axes: Mapping[str, tuple[int, ...]]  # those that grow, one after another


def transformer(K: int, length: int, width: int, depth: int) -> Case:
    """Return an encoder and a decoder of `depth` layers each."""
    build = partial(TransformerClassifier, width=width, layers=depth)
    return Case(build, K, (length, width))


def perceptron(K: int, width: int, depth: int) -> Case:
    """Return `depth` hidden layers."""
    return Case(partial(mlp, width, *[width] * depth, 10), K, (width,))


FAMILIES = {
    "transformer": Family(
        transformer,
        {"K": 8, "length": 32, "width": 128, "depth": 3},
        {
            "K": (4, 8, 16, 32, 64),
            "length": (16, 32, 64, 128, 256),
            "width": (64, 128, 256, 512),
            "depth": (1, 2, 4, 8),
        },
    ),
    "mlp": Family(
        perceptron,
        {"K": 64, "width": 256, "depth": 3},
        {"K": (16, 64, 256, 1024), "width": (64, 256, 1024), "depth": (1, 3, 9, 27)},
    ),
}


@dataclass(frozen=True)
class Point:
    """All contenders on one member of a family."""

    axis: str
    size: int  # along the axis
    times: Mapping[str, Timing | str]
    peaks: Mapping[str, Peak | str]  # empty: not measured


def measure_point(
    family: Family, axis: str, size: int, contenders: Sequence[str], rounds: int, memory: bool
) -> Point:
    """Time the contenders in one process, then measure the memory of each in its own."""
    case = family.case(**{**family.sizes, axis: size})
    times = time_case(case, contenders, rounds)
    return Point(axis, size, times, measure_case(case, contenders) if memory else {})


def times(points: Mapping[str, Sequence[Point]]) -> dict[str, Comparison]:
    """Return a table of milliseconds for each axis."""
    return _tables(points, "ms", lambda p: figures(p.times, milliseconds))


def peaks(points: Mapping[str, Sequence[Point]]) -> dict[str, Comparison]:
    """Return a table of MiB for each axis."""
    return _tables(points, "MiB", lambda p: figures(p.peaks, mebibytes))


def _tables(
    points: Mapping[str, Sequence[Point]], unit: str, read: Callable[[Point], Mapping]
) -> dict[str, Comparison]:
    tables = {}
    for label, along in points.items():  # "mlp, width"
        model = label.partition(",")[0]
        rows = [Row((model, str(point.size)), read(point)) for point in along]
        tables[label] = Comparison(("model", along[0].axis), unit, rows)
    return tables
