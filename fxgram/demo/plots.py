"""The two pictures of the demo: training curves, and the Gramian before and after."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fxgram.demo.training import Point

COLORS = ("#8a8f98", "#d1495b")
GRID = {"color": "#e6e6e6", "linewidth": 0.8}


def plot_curves(
    path: Path, runs: Mapping[str, Sequence[Point]], conflicts: Sequence[Mapping[str, float]]
) -> None:
    """Draw the loss and the accuracy of both runs, and the conflict of both updates."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    losses, accuracies, shares = figure.subplots(1, 3)
    for (name, points), color in zip(runs.items(), COLORS, strict=True):
        epochs = [p.epoch for p in points]
        losses.plot(epochs, [p.train_loss for p in points], color=color, label=f"{name}, training")
        losses.plot(epochs, [p.test_loss for p in points], ":", color=color, label=f"{name}, test")
        accuracies.plot(epochs, [100 * p.test_accuracy for p in points], color=color, label=name)
    epochs = range(1, len(conflicts) + 1)
    for name, color in zip(("mean gradient", "UPGrad"), COLORS, strict=True):
        values = [100 * epoch[name] for epoch in conflicts]
        shares.plot(epochs, values, "o-", markersize=3, color=color, label=name)
    losses.set_yscale("log")
    shares.set_ylim(bottom=0)
    _dress(losses, "Mean loss")
    _dress(accuracies, "Test accuracy (%)")
    _dress(shares, "Conflict: share of increases (%)")
    figure.savefig(path, dpi=150)


def plot_gramians(path: Path, gramians: Mapping[str, Tensor], per_class: int) -> None:
    """Draw each Gramian as the cosines `G[k,l] / sqrt(G[k,k] G[l,l])`, samples sorted by class."""
    figure = Figure(figsize=(5.2 * len(gramians) + 0.9, 5.2), layout="constrained")
    panels = figure.subplots(1, len(gramians), squeeze=False)[0]
    for panel, (title, gramian) in zip(panels, gramians.items(), strict=True):
        image = panel.imshow(cosines(gramian).numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
        panel.set_title(title, fontsize=11, loc="left")
        for border in range(per_class, len(gramian), per_class):
            panel.axhline(border - 0.5, color="white", linewidth=0.6)
            panel.axvline(border - 0.5, color="white", linewidth=0.6)
        ticks = [per_class * c + (per_class - 1) / 2 for c in range(10)]
        panel.set_xticks(ticks, range(10))
        panel.set_yticks(ticks, range(10))
        panel.tick_params(length=0)
        panel.set_xlabel("digit")
        panel.set_ylabel("digit")
        panel.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(panels), shrink=0.8, label="cosine of two samples' gradients")
    figure.savefig(path, dpi=150)


def cosines(gramian: Tensor) -> Tensor:
    """Return `G[k,l] / sqrt(G[k,k] G[l,l])`, and 0 where a gradient vanishes."""
    norms = gramian.diagonal().clamp(min=torch.finfo(gramian.dtype).tiny).sqrt()
    return (gramian / norms[:, None] / norms).cpu()


def _dress(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=11, loc="left")
    panel.set_xlabel("epoch")
    panel.grid(axis="y", which="both", **GRID)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(frameon=False, fontsize=9)
