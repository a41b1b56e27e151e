"""What the passes are told about a captured graph: `Spec`, and how a placeholder is bound."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from torch import fx


@dataclass(frozen=True)
class Input:
    """What one placeholder of a captured graph stands for."""

    kind: Literal["parameter", "buffer", "constant", "batch"]
    name: str  # full name in the model, or how the caller would write a batch argument
    trainable: bool = False  # a parameter that requires grad


@dataclass(frozen=True)
class Spec:
    """Everything a pass may know besides the graph itself."""

    inputs: Mapping[str, Input]  # by placeholder name, in the order of the placeholders
    samples: (
        sympy.Expr | None
    )  # symbol of the batch size K; None: one sample, the whole of every value
    rules: Callable[[Any, str], Callable | None]  # (op overload, schema argument) -> rule
    choices: tuple[Any, ...] = ()  # a `Choice` for each contribution
    product: Literal["gramian", "diagonal"] = "gramian"  # of the per-loss gradients
    recompute: bool = False  # whether cotangents are freed, for a second backward
    calls: tuple[Callable, ...] = ()  # what the marker operators stand for, by their keys
    # one cotangent for each loss: losses share samples, or a sample axis can't be followed
    loss_by_loss: bool = False
    count: int | None = None  # without a symbol: the size that an axis of the losses must have
    cross_terms: bool = False  # whether uses of one parameter are added before they are squared
    rows: int = 1  # losses whose backward passes run at once where there is one for each loss


class PassError(Exception):
    """A graph breaks a promise; `kind` says which, `nodes` are the offenders."""

    def __init__(self, kind: str, message: str, nodes: tuple[fx.Node, ...] = ()):
        super().__init__(message)
        self.kind = kind
        self.nodes = nodes


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors among the outputs of a node, whose `val` is a tensor, a tuple, or a number."""
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
