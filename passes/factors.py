"""What lowering produces: `Factors` of one use, and `Contribution` to the Gramian."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx


@dataclass(frozen=True)
class Kernel:
    """Per-sample gradients `[k, *dims]` of a value by other means than contracting its factors."""

    name: str  # key of the planner's table of costs
    jacobian: fx.Node


@dataclass(frozen=True)
class Factors:
    """The Jacobian of the losses with respect to a value at one site, as a sum of products.

    `equation` labels the operands: `k` samples, `s` summed positions, the labels behind `->` the
    dims of the value (dims of size 1 may be left out): `Factors("kso,ksi->oi", (B, A))`.
    """

    equation: str
    operands: tuple[fx.Node, ...]
    one_hot: int | None = (
        None  # first operand: integers below this, each standing for a unit vector
    )
    reads: str = ""  # what the operands are, for people: "B[k,s,o], A[k,s,i]"
    kernels: tuple[Kernel, ...] = ()

    def sizes(self) -> Mapping[str, int | torch.SymInt]:
        """Size of every label; that of `k` is symbolic."""
        found: dict[str, int | torch.SymInt] = {}
        for at, term in enumerate(self.equation.split("->")[0].split(",")):
            shape = list(self.operands[at].meta["val"].shape)
            if at == 0 and self.one_hot is not None:
                shape.append(self.one_hot)
            found.update(zip(term, shape))
        return found


@dataclass(frozen=True)
class Use:
    """One use of a parameter, as shown to people."""

    parameter: str  # full name
    shape: tuple[int, ...]
    op: str
    source: str  # the user's line


@dataclass(frozen=True)
class Contribution:
    """A summand of the Gramian: uses that are lowered together."""

    uses: tuple[Use, ...]
    # "sum": uses of one parameter, added; "losses": one backward for each loss
    method: Literal["rule", "region", "fallback", "sum", "losses"]
    factors: Factors | None  # of a single use behind views alone: any contraction will do
    jacobians: tuple[fx.Node, ...]  # otherwise: per-sample gradients `[k, ...]`, one for each use
    all_factors: tuple[Factors, ...] = ()  # of every site, for people and for cost
    direct: bool = True  # factors are those of the parameter itself, not of a view of it
    summands: tuple[Factors, ...] = ()  # of unlike uses of one parameter, which can be paired


@dataclass(frozen=True)
class Choice:
    """How a contribution is contracted."""

    # "pairs": (A Aᵀ) ∘ (B Bᵀ); "gradients": per-sample gradients, then J Jᵀ; "bias": along with
    # the pairs of the weight whose output it is added to
    contraction: Literal["pairs", "gradients", "bias"] = "gradients"
    kernel: str = "factors"  # what makes the per-sample gradients: "factors" or a kernel's name
    keep: bool = False  # keep per-sample gradients, from which wᵀJ costs little
    parts: int = 1  # blocks of rows, or slices of the parameter, one of which exists at a time
