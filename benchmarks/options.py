"""Options that commands share, and what is made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.cases import CASES, Case

Models = Annotated[list[str] | None, typer.Option("--model", help="Repeat for more.")]
Contenders = Annotated[list[str] | None, typer.Option("--contender", help="Repeat for more.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed steps of each contender.")]
BatchSize = Annotated[int, typer.Option(min=0, help="0: as the models have it.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int, typer.Option(min=0, help="0: as torch chooses.")]
Json = Annotated[Path | None, typer.Option(help="Write all figures here.")]
Plot = Annotated[Path | None, typer.Option(help="Draw into this .svg, .png or .pdf.")]


def cases_of(
    names: list[str] | None, default: Sequence[str], sizes: Mapping[str, int], batch_size: int
) -> dict[str, Case]:
    """Return the cases, at the batch size given, or at that in `sizes`, or at their own."""
    found = {name: CASES[name] for name in chosen(names, CASES, default, "--model")}
    return {
        name: replace(case, batch_size=batch_size or sizes.get(name, case.batch_size))
        for name, case in found.items()
    }


def chosen(
    names: list[str] | None, known: Mapping[str, Any], default: Sequence[str], option: str
) -> list[str]:
    """Return the names given, or the default; refuse unknown ones."""
    unknown = [name for name in names or () if name not in known]
    if unknown:
        listed = "; ".join(known)
        raise typer.BadParameter(f"{'; '.join(unknown)}: not one of {listed}", param_hint=option)
    return list(dict.fromkeys(names or default))


def prepare(threads: int, *written: Path | None) -> None:
    """Set the threads; refuse paths that can't be written before hours of measuring."""
    if threads:
        torch.set_num_threads(threads)
    for path in written:
        if path and not path.parent.is_dir():
            raise typer.BadParameter(f"the folder of {path} does not exist")
