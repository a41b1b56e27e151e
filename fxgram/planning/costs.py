"""What each way to contract a use costs: the formulas of `steps`, for sizes and a device."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from fxgram.planning.devices import Device, device
from fxgram.planning.steps import PARTS, Path, Product, Step, path_of, steps, symbol, unit_of
from passes import Choice, Factors
from passes import evaluated as evaluated_sizes

_PAIRS, _ROWS = 8, 80  # most blocks of rows, and least rows of a block, of a Gramian of pairs
_SLICE = 2**24  # bytes of per-sample gradients that an allocator hands out again and again
_FRESH = 2**25  # larger blocks come from the system each time, page by page


@dataclass(frozen=True)
class Cost:
    """What one way of contracting a use takes, for one number of samples."""

    choice: Choice
    multiply_adds: float
    bytes: float  # written and read besides the operands
    held: float  # bytes that exist at once while it is contracted
    seconds: float  # roofline estimate, or measured; the weighted gradient included


Figures = tuple[Step, float, float, float]  # multiply-adds, bytes and calls


def choice_name(choice: Choice) -> str:
    """What tables call a choice: "gradients, kept", "gradients by calls", "pairs in 8 blocks"."""
    kernel = "" if choice.kernel == "factors" else f" by {choice.kernel}"
    kind = "slices" if choice.contraction == "gradients" else "blocks"
    parts = f" in {choice.parts} {kind}" if choice.parts > 1 else ""
    return f"{choice.contraction}{kernel}{parts}{', kept' if choice.keep else ''}"


def device_of(factors: Factors) -> Device:
    """The constants of the device that holds the operands of a use."""
    return device(factors.operands[-1].meta["val"].device.type)


def numbers(sizes: Mapping, samples: int) -> dict[str, int]:
    """Evaluate sizes of labels for a number of samples; only `k`, the rows, depends on it."""
    return dict(zip(sizes, evaluated_sizes(sizes.values(), samples)))


@functools.cache
def _evaluator(product: Product, way: Choice, unit: str, path: Path) -> tuple:
    """A function from sizes of labels, in order, and parts to the figures of each step."""
    found = steps(product, way, unit, path)
    fields = [[s.multiply_adds, s.bytes, s.calls] for s in found]
    names = [*(symbol(label) for label in product.labels), PARTS]
    return sympy.lambdify(names, fields, "math"), found


def evaluated(product: Product, choice: Choice, sizes: Mapping[str, int]) -> list[Figures]:
    """The steps of a choice, with multiply-adds, bytes and calls as numbers.

    Three operands and more are multiplied in the order that opt_einsum finds for these sizes.
    """
    from_factors = choice.contraction == "gradients" and choice.kernel == "factors"
    path = path_of(product, sizes) if from_factors else ()
    way = Choice(choice.contraction, choice.kernel, choice.keep)
    evaluate, found = _evaluator(product, way, unit_of(product, choice.kernel, sizes), path)
    values = evaluate(*(sizes[label] for label in product.labels), choice.parts)
    return [(step, *row) for step, row in zip(found, values)]


def cost_at(product: Product, choice: Choice, sizes: Mapping[str, int], device: Device) -> Cost:
    """What a choice takes for a product with these sizes."""
    held = held_at(product, choice, sizes)
    return total(choice, evaluated(product, choice, sizes), held, device)


def total(choice: Choice, figures: Sequence[Figures], held: float, device: Device) -> Cost:
    """Add up steps on a device, for a choice that holds so many bytes at once."""
    seconds, multiply_adds, moved = 0.0, 0.0, 0.0
    for step, products, size, calls in figures:
        work, stream = products / getattr(device, step.unit), size / getattr(device, step.stream)
        # Per-sample weights are written after they are computed, with nothing to overlap.
        seconds += max(work, stream) if step.stream == "bandwidth" else work + stream
        seconds += calls * (device.call if step.unit == "products" else device.backward_call)
        multiply_adds, moved = multiply_adds + products, moved + size
    if held > _FRESH and choice.kernel == "factors":
        seconds += held / device.fresh
    return Cost(choice, float(multiply_adds), float(moved), held, seconds)


def held_at(product: Product, choice: Choice, sizes: Mapping[str, int]) -> float:
    """Bytes that exist at once: per-sample gradients, or products of pairs of positions."""
    if choice.contraction == "bias":
        return 0.0
    if choice.contraction != "pairs":
        whole = product.element * sizes["k"] * math.prod(sizes[c] for c in product.result)
        return whole / choice.parts
    rows = sizes["k"] * sizes.get("s", 1)
    groups = math.prod(sizes[c] for c in product.shared)
    return 2 * product.element * rows * rows * groups / choice.parts


def candidates_at(
    product: Product,
    sizes: Mapping[str, int],
    device: Device,
    *,
    keep: bool = True,
    limit: float = math.inf,
) -> tuple[Cost, ...]:
    """Costs of all ways to contract a product, cheapest first; within `limit` bytes, if any are."""
    limit = max(limit, 1.0)
    kernels = ("factors", *product.kernels)
    choices = [Choice("gradients", kernel, kept) for kernel in kernels for kept in {False, keep}]
    several = len(product.terms) > 1
    if several and not product.one_hot:
        longest = max((sizes[c] for c in product.result), default=1)
        whole = held_at(product, Choice("gradients"), sizes)
        for size in (limit, _SLICE):
            parts = min(longest, math.ceil(whole / size)) if size < whole else 1
            if parts > 1:
                choices.append(Choice("gradients", parts=parts))
    if several and product.result:
        rows = sizes["k"] * sizes.get("s", 1)
        blocks = max(1, min(_PAIRS, rows // _ROWS, sizes["k"]))
        square = held_at(product, Choice("pairs"), sizes)
        if square > limit:
            blocks = min(sizes["k"], max(blocks, math.ceil(square / limit)))
        choices.append(Choice("pairs", parts=blocks))
    found = [cost_at(product, c, sizes, device) for c in dict.fromkeys(choices)]
    fitting = [c for c in found if c.held <= limit] or [min(found, key=lambda c: c.held)]
    return tuple(sorted(fitting, key=lambda c: c.seconds))


def cost(factors: Factors, choice: Choice, samples: int) -> Cost:
    """What a choice takes for a use at a number of samples."""
    sizes = numbers(factors.sizes(), samples)
    return cost_at(Product.of(factors), choice, sizes, device_of(factors))


def held(factors: Factors, choice: Choice, sizes: Mapping[str, int]) -> float:
    """Bytes that a choice holds at once for a use with these sizes."""
    return held_at(Product.of(factors), choice, sizes)


def candidates(
    factors: Factors, samples: int, *, keep: bool = True, limit: float = math.inf
) -> tuple[Cost, ...]:
    """Costs of all ways to contract a use, cheapest first; those within `limit` bytes, if any."""
    sizes = numbers(factors.sizes(), samples)
    return candidates_at(Product.of(factors), sizes, device_of(factors), keep=keep, limit=limit)
