"""Train the same initial model twice, side by side."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from fxgram.demo.data import Digits
from fxgram.demo.descent import JacobianDescent, MeanGradient
from fxgram.demo.training import Point, train


class Diverged(Exception):
    """The loss of a contender is no longer finite."""


@dataclass(frozen=True)
class Race:
    """Both runs, epoch by epoch."""

    runs: dict[str, Sequence[Point]]  # epoch 0 is before the first step
    conflicts: Sequence[dict[str, float]]  # along the Jacobian descent, from epoch 1
    weighting_seconds: float  # the part of the Jacobian descent spent in UPGrad


def race(
    model: nn.Module,
    objective: Callable,
    step: Callable,
    sets: tuple[Digits, Digits],
    console: Console,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> Race:
    """Train `model` by Jacobian descent and a copy of it by SGD, on the same batches.

    Raises:
        Diverged: The learning rate is too high for one of them.
    """
    twin = copy.deepcopy(model)
    jacobian_descent = JacobianDescent(step)
    contenders = {
        "SGD": (twin, MeanGradient(twin, objective)),
        "Jacobian descent": (model, jacobian_descent),
    }
    runs: dict[str, list[Point]] = {name: [] for name in contenders}
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(bar_width=30),
        TextColumn("epoch {task.fields[epoch]:2}   loss {task.fields[loss]:.4f}"),
        TextColumn("accuracy {task.fields[accuracy]:.1%}"),
        TimeRemainingColumn(),
    )
    conflicts = []
    with Progress(*columns, console=console) as progress:
        loops = []
        for name, (contender, fill_gradients) in contenders.items():
            steps = epochs * (len(sets[0]) // batch_size)
            bar = progress.add_task(name, total=steps, epoch=0, loss=float("nan"), accuracy=0.0)
            points = train(
                contender,
                objective,
                fill_gradients,
                sets,
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=learning_rate,
                seed=seed,
                on_step=lambda bar=bar: progress.advance(bar),
            )
            loops.append((name, bar, points))
        for _ in range(epochs + 1):
            for name, bar, points in loops:
                point = next(points)
                if not math.isfinite(point.train_loss):
                    raise Diverged(f"{name} diverged in epoch {point.epoch}")
                runs[name].append(point)
                progress.update(
                    bar, epoch=point.epoch, loss=point.test_loss, accuracy=point.test_accuracy
                )
            conflicts.append(jacobian_descent.pop_conflicts())
    return Race(dict(runs), conflicts[1:], jacobian_descent.weighting_seconds)
