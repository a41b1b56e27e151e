"""Ways to fill `.grad`, most of which compute the Gramian or its diagonal on the way.

Each stands in a file of its own and is built on its own copy of the model. `build(model,
objective)` returns `run(x, y, weights)`, which returns

* what it computed: the Gramian [k,l], its diagonal [k], or None;
* the weights of the losses in the gradient it added to `.grad`.

Weights are given, so that no time goes into finding them. Those who compute the diagonal alone
ignore them and clip: the weights are then `clipped(norms)`.

A library that not all contenders need is imported by the one that needs it.
"""

from collections.abc import Callable

from torch import nn

from benchmarks.cases import Objective
from benchmarks.contenders import compiled, ghost, hand_written, plain, torchjd_engine, vmapped
from benchmarks.contenders.contract import Run

CONTENDERS: dict[str, Callable[[nn.Module, Objective], Run]] = {
    "SGD": plain.sgd,
    "fxgram": compiled.gramian,
    "fxgram, recompute": compiled.gramian_recompute,
    "fxgram, diagonal": compiled.diagonal,
    "TorchJD": torchjd_engine.gramian,
    "Opacus": ghost.diagonal,
    "vmap(grad)": vmapped.gramian,
    "hand-written": hand_written.gramian,
}
