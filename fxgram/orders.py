"""`fxgram orders`: when each way to contract a linear layer wins, as formulas and as a table."""

from typing import Annotated

import torch
import typer

from fxgram import symbolic
from fxgram.explain import table
from fxgram.planning.devices import device
from fxgram.planning.steps import Product
from fxgram.planning.timings import described

_LAYER = Product("kso,ksi->oi")


def orders(
    width: Annotated[
        list[int] | None, typer.Option(help="I = O, inputs and outputs; repeat for more.", min=1)
    ] = None,
    positions: Annotated[
        list[int] | None, typer.Option(help="S, the length of a sequence; repeat for more.", min=1)
    ] = None,
) -> None:
    """Show when pairs and when per-sample gradients give the Gramian of a linear layer for less."""
    print(report(width or [64, 256, 1024, 4096], positions or [1, 4, 16, 64, 256]))


def report(widths: list[int], positions: list[int]) -> str:
    """Formulas of a linear layer with I = O, and the numbers of samples where ways cross."""
    block = symbolic.block(_LAYER, (), ("linear",), (), True)
    ways = table(
        ("way", "multiply-adds"), [(f.name, symbolic.text(f.multiply_adds)) for f in block.formulas]
    )
    row, name = device("cpu"), described(torch.device("cpu"))
    body = []
    for width in widths:
        for count in positions:
            sizes = {"k": 1, "s": count, "o": width, "i": width}
            fastest = symbolic.ranges(_LAYER, sizes, "k", row)
            fewest = symbolic.ranges(_LAYER, sizes, "k", row, key=lambda cost: cost.multiply_adds)
            body.append(
                (str(width), str(count), *(symbolic.shown(r, "K") for r in (fewest, fastest)))
            )
    head = ("I = O", "S", "fewest multiply-adds", f"fastest on {name}")
    return "\n".join([ways, "", *map(str, block.conditions), "", table(head, body)])
