"""The commands: each measures, then prints a table and writes what it was asked for."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from benchmarks import max_batch as searching
from benchmarks import memory as residing
from benchmarks import scaling as growing
from benchmarks.cases import NINE, Case
from benchmarks.contenders import CONTENDERS
from benchmarks.machine import describe
from benchmarks.options import (
    BatchSize,
    Contenders,
    Device,
    Json,
    Models,
    Plot,
    Rounds,
    Threads,
    cases_of,
    chosen,
    prepare,
)
from benchmarks.plots import draw_bars, draw_lines
from benchmarks.report import (
    Comparison,
    Row,
    about,
    figures,
    geometric_mean,
    show,
    write_json,
)
from benchmarks.timing import milliseconds, time_case

T = TypeVar("T")

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console, progress = Console(), Console(stderr=True)


@app.callback()
def options() -> None:
    """Compare fxgram with its alternatives on this machine."""


@app.command()
def step(
    model: Models = None,
    contender: Contenders = None,
    rounds: Rounds = 11,
    batch_size: BatchSize = 0,
    device: Device = "cpu",
    threads: Threads = 0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Time a whole training step: losses, Gramian and gradients."""
    contenders = chosen(contender, CONTENDERS, ("SGD", "fxgram", "TorchJD"), "--contender")
    cases = cases_of(model, NINE, {}, batch_size)
    _times(cases, contenders, rounds, device, threads, json, plot)


@app.command()
def diagonal(
    model: Models = None,
    contender: Contenders = None,
    rounds: Rounds = 11,
    batch_size: BatchSize = 0,
    device: Device = "cpu",
    threads: Threads = 0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Time a step that needs the norms alone: losses, norms and the clipped gradient."""
    default = ("SGD", "fxgram, diagonal", "Opacus")
    contenders = chosen(contender, CONTENDERS, default, "--contender")
    cases = cases_of(model, ("language-model",), {}, batch_size)
    _times(cases, contenders, rounds, device, threads, json, plot)


@app.command()
def memory(
    model: Models = None,
    contender: Contenders = None,
    batch_size: BatchSize = 0,
    threads: Threads = 0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Measure the peak resident memory of a process that trains."""
    default = ("SGD", "fxgram", "fxgram, recompute", "TorchJD")
    contenders = chosen(contender, CONTENDERS, default, "--contender")
    sizes = {"alexnet-224": 64, "transformer": 32}
    cases = cases_of(model, tuple(sizes), sizes, batch_size)
    prepare(threads, json, plot)
    results = _each(cases, lambda case: residing.measure_case(case, contenders))
    rows = [
        Row(_leading(name, case), figures(results[name], residing.mebibytes))
        for name, case in cases.items()
    ]
    comparison = Comparison(("model", "K", "sample"), "MiB", rows)
    notes = ["Peaks of whole processes."]
    _finish(comparison, {"cases": results}, notes, json, plot, "peak memory")


@app.command()
def scaling(
    model: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(growing.FAMILIES)}; repeat for more.")
    ] = None,
    axis: Annotated[list[str] | None, typer.Option(help="What grows; all if none.")] = None,
    contender: Contenders = None,
    rounds: Rounds = 5,
    points: Annotated[int, typer.Option(min=0, help="The first so many sizes; 0: all.")] = 0,
    memory: Annotated[bool, typer.Option(help="Measure the memory too.")] = True,
    threads: Threads = 0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Measure time and peak memory against batch size, length, width and depth."""
    contenders = chosen(contender, CONTENDERS, ("SGD", "fxgram", "TorchJD"), "--contender")
    families = chosen(model, growing.FAMILIES, tuple(growing.FAMILIES)[:1], "--model")
    every = dict.fromkeys(a for name in families for a in growing.FAMILIES[name].axes)
    axes = chosen(axis, every, tuple(every), "--axis")
    prepare(threads, json, plot)
    measured: dict[str, list[growing.Point]] = {}
    for name in families:
        family = growing.FAMILIES[name]
        for grown in (a for a in axes if a in family.axes):
            for size in family.axes[grown][: points or None]:
                progress.print(f"{name}, {grown} {size} ...", highlight=False)
                found = growing.measure_point(family, grown, size, contenders, rounds, memory)
                measured.setdefault(f"{name}, {grown}", []).append(found)
    machine = describe("cpu")
    tables = {"ms": growing.times(measured)}
    if memory:
        tables["peak MiB"] = growing.peaks(measured)
    for by_axis in tables.values():
        for comparison in by_axis.values():
            show(console, comparison)
            print(comparison.markdown() + "\n")
    print(about(machine))
    if json:
        write_json(json, {"points": measured}, machine)
    if plot:
        draw_lines(plot, tables)
    _exit(c for by_axis in tables.values() for c in by_axis.values())


@app.command("max_batch")
def max_batch(
    limit: Annotated[str, typer.Option(help="On private memory, such as 4GiB.")] = "4GiB",
    precision: Annotated[float, typer.Option(min=0, help="Of the result, relative.")] = 0.02,
    model: Models = None,
    contender: Contenders = None,
    threads: Threads = 0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Search the largest batch that trains within a memory limit."""
    default = ("SGD", "fxgram", "fxgram, recompute", "TorchJD")
    contenders = chosen(contender, CONTENDERS, default, "--contender")
    cases = cases_of(model, ("alexnet-224", "transformer"), {}, 0)
    try:
        most = searching.parse_bytes(limit)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--limit") from None
    prepare(threads, json, plot)
    results = _each(cases, lambda case: searching.search_case(case, contenders, most, precision))
    rows = [
        Row(
            (name, "x".join(map(str, case.shape))),
            figures(results[name], lambda largest: largest.batch_size),
        )
        for name, case in cases.items()
    ]
    comparison = Comparison(("model", "sample"), "K", rows)
    notes = [f"Largest batch in {limit}, within {precision:.0%}."]
    _finish(comparison, {"limit": most, "cases": results}, notes, json, plot, "largest batch")


def _times(
    cases: Mapping[str, Case],
    contenders: Sequence[str],
    rounds: int,
    device: str,
    threads: int,
    json: Path | None,
    plot: Path | None,
) -> None:
    """Time the cases; say the geometric means over those of the nine that are among them."""
    prepare(threads, json, plot)
    results = _each(cases, lambda case: time_case(case, contenders, rounds, device))
    rows = {
        name: Row(_leading(name, case), figures(results[name], milliseconds))
        for name, case in cases.items()
    }
    notes = ["Medians, contenders interleaved."]
    for name, to in (("fxgram", "SGD"), ("TorchJD", "SGD"), ("TorchJD", "fxgram")):
        mean = geometric_mean(row.ratio(name, to) for case, row in rows.items() if case in NINE)
        if mean:
            notes.append(
                f"{name} / {to}: geometric mean {mean[0]:.2f} over {mean[1]} of the nine models."
            )
    comparison = Comparison(("model", "K", "sample"), "ms", list(rows.values()))
    _finish(comparison, {"cases": results}, notes, json, plot, "step time", device)


def _finish(
    comparison: Comparison,
    results: Mapping[str, Any],
    notes: Sequence[str],
    json: Path | None,
    plot: Path | None,
    label: str,
    device: str = "cpu",
) -> None:
    machine = describe(device)
    show(console, comparison)
    print("\n".join([comparison.markdown(), "", *notes, about(machine)]))
    if json:
        write_json(json, results, machine)
    if plot:
        draw_bars(plot, comparison, label)
    _exit([comparison])


def _exit(comparisons) -> None:
    """Exit with 1 if a contender of our own has no figure."""
    for comparison in comparisons:
        for row in comparison.rows:
            if any(n.startswith("fxgram") and isinstance(f, str) for n, f in row.figures.items()):
                sys.exit(1)


def _each(cases: Mapping[str, Case], measure: Callable[[Case], T]) -> dict[str, T]:
    results = {}
    for name, case in cases.items():
        progress.print(f"{name} ...", highlight=False)
        results[name] = measure(case)
    return results


def _leading(name: str, case: Case) -> tuple[str, ...]:
    return name, str(case.batch_size), "x".join(map(str, case.shape))
