"""One model of the zoo: how to build it, feed it, reduce it to losses, and untie it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SEED = 7


class Draw:
    """Draw the inputs of a batch from one seeded generator."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def normal(self, *shape: int) -> Tensor:
        """Return normal numbers; the same ones up to rounding in every dtype."""
        return torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self._dtype)

    def ids(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return integers from 0 to `below` - 1."""
        return torch.randint(below, shape, generator=self._generator).to(dtype)

    def mask(self, *shape: int) -> Tensor:
        """Return booleans, a third of them true."""
        return torch.rand(shape, generator=self._generator) < 0.33


def mean_squares(model: nn.Module, *batch: Any) -> Tensor:
    """Reduce all outputs of a model, however nested, to losses `[K]`."""
    return sum(
        (leaf - 0.3).square().mean(tuple(range(1, leaf.dim())))
        if leaf.dim() > 1
        else (leaf - 0.3).square()
        for leaf in _leaves(model(*batch))
    )


def cross_entropy(model: nn.Module, inputs: Any, classes: Tensor) -> Tensor:
    """Return the losses `[K]` of logits `[K, c]`."""
    return nn.functional.cross_entropy(model(inputs), classes, reduction="none")


@dataclass(frozen=True)
class Case:
    """One model of the zoo, per-sample independent, with everything a test needs to run it."""

    name: str
    # the model, from torch's global generator (which `make` seeds)
    build: Callable[[], nn.Module]
    # positional arguments of a batch of k samples
    draw: Callable[[Draw, int], tuple]
    # (model, *batch) -> losses [K, ...]; None: the model returns them
    objective: Callable[..., Tensor] | None = mean_squares
    # the hand-written twin in which every use of a parameter has its own copy
    untied: Callable[[], nn.Module] | None = None
    # twin's name -> original's name, of parameters or of modules; other names stay
    copies: Mapping[str, str] = field(default_factory=dict)
    batch_dim: Any = 0
    # batch sizes to test, without those that the eager model rejects
    sizes: tuple[int, ...] = (0, 1, 2, 3, 8)
    # whether one sample, sliced from the batch, gives the loss and the gradient that it gives there
    alone: bool = True
    # draws random numbers in the forward
    random: bool = False
    # uses ops that nobody will have a fast rule for
    fallback: bool = False
    large: bool = False
    # relative tolerance in float64; larger where the model itself computes in float32
    rtol: float = 1e-9

    def make(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Build the model, always with the same values."""
        return _seeded(self.build, dtype)

    def batch(self, k: int, dtype: torch.dtype = torch.float64) -> tuple:
        """Return the arguments of a batch of k samples, always with the same values."""
        return self.draw(Draw(SEED + k, dtype), k)

    def twin(self, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, dict[str, str]] | None:
        """Return the untied twin with the original's values and {twin's name: original's name}.

        None if no parameter is used twice.
        """
        if self.untied is None:
            return None
        twin = _seeded(self.untied, dtype)
        originals = {name: self._original(name) for name, _ in twin.named_parameters()}
        self.copy_state(self.make(dtype), twin)
        return twin, originals

    def copy_state(self, model: nn.Module, twin: nn.Module) -> None:
        """Give the twin the parameters, the buffers and the `requires_grad` of the model."""
        params = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        with torch.no_grad():
            for name, param in twin.named_parameters():
                original = params[self._original(name)]
                param.copy_(original).requires_grad_(original.requires_grad)
            for name, buffer in twin.named_buffers():
                buffer.copy_(buffers[self._original(name)])

    def _original(self, name: str) -> str:
        """Map a twin's name: ("one" -> "both") turns "one.weight" into "both.weight"."""
        for twin, original in self.copies.items():
            if name == twin or name.startswith(f"{twin}."):
                return original + name[len(twin) :]
        return name


def _seeded(build: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return build()._apply(lambda t: t.to(_dtype_of(t, dtype)))


def _dtype_of(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype


def _leaves(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    children = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [leaf for child in children for leaf in _leaves(child)]
