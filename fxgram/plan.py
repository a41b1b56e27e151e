"""Choose how the Gramian of each use is contracted: pure functions over sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import opt_einsum
import sympy

from passes import Contribution, Factors

# Roofline of one CPU core pair: multiply-adds and bytes per second.
_RATE, _BANDWIDTH = 40e9, 8e9


@dataclass(frozen=True)
class Cost:
    """What one way of contracting a use takes."""

    choice: str  # "gradients": per-sample gradients, then J Jᵀ; "pairs": (A Aᵀ) * (B Bᵀ)
    equation: str  # of the whole Gramian
    multiply_adds: float
    bytes: float  # written and read besides the operands

    @property
    def seconds(self) -> float:
        """Roofline estimate."""
        return max(self.multiply_adds / _RATE, self.bytes / _BANDWIDTH)


def numbers(sizes: Mapping, samples: int) -> dict[str, int]:
    """Evaluate sizes of labels for a number of samples; only `k`, the rows, depends on it."""
    found = {}
    for label, size in sizes.items():
        expression = size.node.expr if hasattr(size, "node") else sympy.Integer(size)
        symbols = dict.fromkeys(expression.free_symbols, samples)
        found[label] = int(expression.subs(symbols))
    return found


def candidates(factors: Factors, samples: int, element: int = 4) -> tuple[Cost, ...]:
    """Costs of both ways, cheapest first; `element` is the size of a number in bytes."""
    sizes = numbers(factors.sizes(), samples)
    inputs, result = factors.equation.split("->")
    terms = inputs.split(",")
    k, parameter = sizes["k"], math.prod(sizes[label] for label in result)
    half = math.prod(sizes[c] for c in set(inputs) if c != ",")
    if factors.one_hot is not None:
        half //= max(sizes["v"], 1)
    elif len(terms) > 2:
        shapes = [tuple(sizes[c] for c in term) for term in terms]
        _, info = opt_einsum.contract_path(f"{inputs}->k{result}", *shapes, shapes=True)
        half = float(info.opt_cost) / 2
    mirrored = inputs.translate(str.maketrans("ks", "lt"))
    equation = f"{inputs},{mirrored}->kl"
    gradients = Cost(
        "gradients", equation, half + k * k * parameter / 2, 3.0 * element * k * parameter
    )
    positions = [sizes[c] for c in "s" if c in inputs]
    square = k * k * math.prod(positions) ** 2
    own = sum(math.prod(sizes[c] for c in term if c not in "ks") for term in terms)
    pairs = Cost(
        "pairs", equation, square * (own + len(terms)), 3.0 * element * square * len(terms)
    )
    if len(terms) == 1 or not parameter:
        return (gradients,)
    return tuple(sorted((gradients, pairs), key=lambda cost: cost.seconds))


def choose(contribution: Contribution, samples: int) -> str:
    """The cheapest way to contract a use at this batch size."""
    if contribution.factors is None:
        return "gradients"
    return candidates(contribution.factors, samples)[0].choice
