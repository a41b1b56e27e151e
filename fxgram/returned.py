"""What an objective returns: losses, in whatever container, and values besides them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from fxgram.batch import Batch
from fxgram.errors import InvalidLosses


@dataclass(frozen=True)
class Aux:
    """The second of `(losses, aux)`, flattened: which leaves are computed, and all the others."""

    tree: TreeSpec
    plain: tuple[Any, ...]  # all leaves, None for computed ones
    places: tuple[int, ...]  # of the computed ones among the leaves

    def filled(self, values: tuple[Any, ...]) -> Any:
        """The container with these values in the places of the computed ones."""
        leaves = list(self.plain)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return tree_unflatten(leaves, self.tree)


@dataclass(frozen=True)
class Objective:
    """How to call the model for its losses, with options of `compile` that bear upon it."""

    model: nn.Module
    function: Callable | None  # None: the model returns the losses
    has_aux: bool = False

    def __call__(self, batch: Batch, tensors: tuple[Tensor, ...]) -> "Returned":
        """Run the forward on these tensors of a batch.

        Raises: InvalidLosses for what holds no losses.
        """
        args, kwargs = batch.arguments(tensors)
        if self.function is None:
            value = self.model(*args, **kwargs)
        else:
            value = self.function(self.model, *args, **kwargs)
        found: Any = ()
        if self.has_aux:
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise InvalidLosses(
                    f"With aux=True the objective returns (losses, aux), not {_described(value)}."
                )
            value, found = value
        sizes = [t.shape[d] for t, d in zip(tensors, batch.dims) if d is not None]
        losses = _gathered(value, sizes[0] if sizes else None)
        leaves, tree = tree_flatten(found)
        places = tuple(i for i, x in enumerate(leaves) if isinstance(x, Tensor | torch.SymInt))
        values = tuple(_detached(leaves[i]) for i in places)
        plain = tuple(None if i in places else x for i, x in enumerate(leaves))
        return Returned(losses, values, Aux(tree, plain, places) if self.has_aux else None)


@dataclass(frozen=True)
class Returned:
    """What one call of an objective returned."""

    losses: Tensor
    values: tuple[Any, ...] = ()  # the computed leaves of aux, detached
    aux: Aux | None = field(default=None)


def _gathered(value: Any, samples: Any) -> Tensor:
    """One tensor of losses; a container's tensors in the order of `torch.utils._pytree`.

    With samples, `{"a": [K], "b": [K, 2]}` gives `[K, 3]`; without, the flattened tensors follow
    each other: `([2], [], [3, 2])` gives `[9]`.
    """
    if isinstance(value, Tensor):
        return value
    leaves, _ = tree_flatten_with_path(value)
    for path, leaf in leaves:
        at = f" at {keystr(path)}" if path else ""
        if not isinstance(leaf, Tensor):
            raise InvalidLosses(_expected(f"{_described(leaf)}{at}"))
        if not leaf.is_floating_point():
            raise InvalidLosses(_expected(f"a tensor of {leaf.dtype}{at}, not floating point,"))
        if samples is not None and (leaf.ndim == 0 or leaf.shape[0] != samples):
            raise InvalidLosses(_expected(f"a tensor of shape {list(leaf.shape)}{at}"))
    if not leaves:
        raise InvalidLosses(_expected(f"an empty {type(value).__name__}"))
    if samples is None:
        return torch.cat([leaf.flatten() for _, leaf in leaves])
    columns = [leaf.flatten(1) if leaf.ndim > 1 else leaf.unsqueeze(1) for _, leaf in leaves]
    return torch.cat(columns, 1)


def _expected(found: str) -> str:
    return (
        f"The objective returned {found} instead of losses: with batch_dim=0 a tensor with one for "
        "each sample, [K] or [K, T], or a tuple, list or dict of such tensors; with batch_dim=None "
        "tensors of any shape. What is no loss goes besides them: aux=True and (losses, aux)."
    )


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
