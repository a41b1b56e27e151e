"""What the demo prints."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import nn

from fxgram.demo.data import Digits
from fxgram.demo.output import versions
from fxgram.demo.race import Race

ERROR_NAMES = {"gramian": "Gramian G = J Jᵀ", "gradient": "gradient wᵀJ, random weights w"}


def show_task(
    console: Console, name: str, model: nn.Module, sets: tuple[Digits, Digits], batch_size: int
) -> None:
    """Say what is trained on what."""
    numbers = sum(p.numel() for p in model.parameters())
    console.print(", ".join(f"{package} {v}" for package, v in versions().items()), style="dim")
    console.print(
        f"Handwritten digits, {len(sets[0])} to train and {len(sets[1])} to test. Model {name} "
        f"with {numbers} parameters, one loss per sample, {batch_size} samples a batch."
    )


def show_program(console: Console, step) -> None:
    """Print the compiled step: its passes, and its uses of parameters."""
    for title, text in (
        ("What the passes did", step.passes),
        ("How each use of a parameter enters the Gramian", step.explain()),
    ):
        console.rule(title, align="left")
        console.print(str(text), markup=False, highlight=False, no_wrap=True, overflow="ellipsis")


def show_check(console: Console, errors: Mapping[str, float], tolerance: float) -> None:
    """Print the largest relative errors against autograd."""
    console.rule("Check against autograd: float64, one backward per loss", align="left")
    table = Table("", "largest relative error", "", box=None, header_style="dim")
    for name, error in errors.items():
        verdict = "[green]ok[/]" if error < tolerance else f"[red]above {tolerance:.0e}[/]"
        table.add_row(ERROR_NAMES[name], f"{error:.1e}", verdict)
    console.print(table)
    console.rule("Training, same initial weights and batches", align="left")


def show_race(console: Console, result: Race, steps: int) -> None:
    """Print where both runs ended, and what a step took."""
    table = Table("", box=None, header_style="dim")
    for header in ("training loss", "test loss", "test accuracy", "time per step"):
        table.add_column(header, justify="right")
    for name, points in result.runs.items():
        last, seconds = points[-1], sum(p.seconds for p in points)
        table.add_row(
            name,
            f"{last.train_loss:.4f}",
            f"{last.test_loss:.4f}",
            f"{last.test_accuracy:.1%}",
            f"{1000 * seconds / steps:.2f} ms",
        )
    console.print(table)
    conflict = {
        name: sum(epoch[name] for epoch in result.conflicts) / len(result.conflicts)
        for name in result.conflicts[0]
    }
    console.print(
        f"Of a step of Jacobian descent, {1000 * result.weighting_seconds / steps:.2f} ms are "
        "UPGrad's own work, to find the weights."
    )
    console.print(
        f"Of the change that a step makes to the losses of its batch, to first order, "
        f"{conflict['UPGrad']:.2%} are increases; the mean gradient would have made it "
        f"{conflict['mean gradient']:.2%}."
    )
    console.print(
        f"UPGrad's weights sum to {conflict['sum of weights']:.1f} on average, those of the mean "
        "to 1: at the same learning rate its steps are longer."
    )


def show_folder(console: Console, folder: Path, names: Iterable[str]) -> None:
    """Name what was written and where."""
    console.print(f"Wrote {', '.join(names)} to {folder.resolve()}", soft_wrap=True)
