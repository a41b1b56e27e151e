"""The options of `fxgram demo`, and its order of events."""

from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from torch import Tensor, nn

import fxgram
from fxgram.demo import data, show
from fxgram.demo.models import MODELS
from fxgram.demo.oracle import relative_errors
from fxgram.demo.output import writable_folder, write_figures
from fxgram.demo.plots import plot_curves, plot_gramians
from fxgram.demo.race import Diverged, race

ModelName = Literal["cnn", "mlp", "attention"]
TOLERANCE = 1e-4  # of the check: a hundred times what rounding in float32 leaves, and more
PER_CLASS = 6  # samples of each digit in the picture of the Gramian


def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return one loss per sample, [k]."""
    return F.cross_entropy(model(x), y, reduction="none")


def demo(
    model: Annotated[ModelName, typer.Option(help="What to train.")] = "cnn",
    epochs: Annotated[int, typer.Option(min=1, max=1000)] = 10,
    batch_size: Annotated[int, typer.Option(min=2, max=128)] = 32,
    learning_rate: Annotated[float, typer.Option(min=0, max=1, help="Of both contenders.")] = 0.03,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("fxgram-demo"),
) -> None:
    """Train on handwritten digits by Jacobian descent and by SGD, and compare."""
    try:
        folder = writable_folder(out)
    except OSError as error:
        reason = f"cannot write to {out}: {error.strerror}"
        raise typer.BadParameter(reason, param_hint="--out") from error
    console = Console()
    torch.set_num_threads(1)  # the tensors are small: threads would wait more than they work
    torch.manual_seed(seed)
    sets = data.load(seed)
    network = MODELS[model]()
    show.show_task(console, model, network, sets, batch_size)

    step = fxgram.compile(network, objective)
    x, y = next(sets[0].batches(batch_size, torch.Generator().manual_seed(seed)))
    errors = relative_errors(network, objective, step, x, y)
    show.show_program(console, step)
    show.show_check(console, errors, TOLERANCE)
    if not max(errors.values()) < TOLERANCE:  # not: NaN fails too
        raise typer.Exit(1)

    sample = sets[0].sorted_by_class(PER_CLASS)
    gramians = {"Before training": step(*sample)[1]}
    try:
        result = race(
            network,
            objective,
            step,
            sets,
            console,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
        )
    except Diverged as error:
        raise typer.BadParameter(f"{error}, try less", param_hint="--learning-rate") from error
    gramians[f"After {epochs} epochs of Jacobian descent"] = step(*sample)[1]
    steps = epochs * (len(sets[0]) // batch_size)
    show.show_race(console, result, steps)

    plot_curves(folder / "curves.png", result.runs, result.conflicts)
    plot_gramians(folder / "gramian.png", gramians, PER_CLASS)
    write_figures(
        folder / "figures.json",
        result.runs,
        {
            "options": {
                "model": model,
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "seed": seed,
            },
            "relative_errors": errors,
            "steps": steps,
            "weighting_seconds": result.weighting_seconds,
            "conflicts": result.conflicts,
            "gramians": {name: gramian.tolist() for name, gramian in gramians.items()},
        },
    )
    show.show_folder(console, folder, ("curves.png", "gramian.png", "figures.json"))
