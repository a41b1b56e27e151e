"""`Captured`: the graph of one forward, whichever tracer saw it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import sympy
import torch
from torch import fx, nn

from fxgram.returned import Aux
from passes import Input

LARGEST = sys.maxsize  # as the largest number of samples: any


@dataclass(frozen=True)
class Captured:
    """The graph of one forward: placeholders are parameters, buffers, constants, then the batch."""

    gm: fx.GraphModule
    inputs: dict[str, Input]  # by placeholder name
    constants: dict[str, torch.Tensor]  # by placeholder name, the objective's own tensors
    samples: sympy.Expr | None  # symbol of K; None: captured for the sizes of one batch
    sizes: tuple[int, int]  # least and largest K that the graph holds for
    aux: Aux | None = None  # what the objective returns besides the losses
    calls: tuple[Callable, ...] = ()  # what its marker operators stand for, by their keys
    differentiated: bool = False  # traced below autograd: the objective differentiates inside


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every parameter, by identity: tied weights share it."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names
