"""`python -m benchmarks`: needs the extra `bench`."""

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.cases import CASES
from benchmarks.machine import describe
from benchmarks.report import print_report, write_json
from benchmarks.timing import Timing, time_case
from fxgram.cli import run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def options() -> None:
    """Compare fxgram with its alternatives on this machine."""


@app.command()
def step(
    model: Annotated[list[str] | None, typer.Option(help="Repeat for more; all if none.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each contender.")] = 11,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="0: as torch chooses.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write all timings here.")] = None,
) -> None:
    """Time a whole training step: losses, Gramian and gradients."""
    unknown = [name for name in model or () if name not in CASES]
    if unknown:
        reason = f"{', '.join(unknown)}: not one of {', '.join(CASES)}"
        raise typer.BadParameter(reason, param_hint="--model")
    if threads:
        torch.set_num_threads(threads)
    if json and not json.parent.is_dir():
        raise typer.BadParameter(f"the folder of {json} does not exist", param_hint="--json")
    console, progress = Console(), Console(stderr=True)
    results = {}
    for name in model or list(CASES):
        progress.print(f"{name} ...", highlight=False)
        results[name] = time_case(CASES[name], rounds, device)
    machine = describe(device)
    print_report(console, results, machine)
    if json:
        write_json(json, results, machine)
    if not all(isinstance(timings["fxgram"], Timing) for timings in results.values()):
        sys.exit(1)


run(app, prog="benchmarks")
