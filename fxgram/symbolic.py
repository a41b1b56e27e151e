"""`step.explain(symbolic=True)`: costs as formulas, and which way to contract wins when."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from fxgram.explain import table
from fxgram.planning.costs import Cost, candidates_at, choice_name, device_of, numbers
from fxgram.planning.devices import Device
from fxgram.planning.steps import PARTS, Path, Product, path_of, steps, symbol
from passes import Choice, Contribution

MOST = 2**12  # crossovers are looked for from 1 up to this size
_PAIRS, _PLAIN = Choice("pairs"), Choice("gradients")
_KEPT = Choice("gradients", keep=True)
Ranges = tuple[tuple[int, str], ...]  # from which size on which way wins


@dataclass(frozen=True)
class Formula:
    """The cost of one way to contract, its weighted gradient included."""

    choice: Choice
    multiply_adds: sympy.Expr
    bytes: sympy.Expr
    calls: sympy.Expr

    @property
    def name(self) -> str:
        """What tables call it."""
        return choice_name(self.choice)


@dataclass(frozen=True)
class Condition:
    """When pairs take fewer multiply-adds than another way: `K * slope < offset`."""

    other: Choice
    slope: sympy.Expr
    offset: sympy.Expr

    @property
    def crossover(self) -> sympy.Expr:
        """K*: below it pairs win; where it is negative they always do."""
        return self.offset / self.slope

    def __str__(self) -> str:
        return (
            f"pairs take fewer multiply-adds than {choice_name(self.other)} "
            f"iff K·({text(self.slope)}) < {text(self.offset)}"
        )


@dataclass(frozen=True)
class Sized:
    """Uses of one size: what wins, and from where on."""

    sizes: Mapping[str, int]  # of the labels
    parameters: tuple[str, ...]
    choice: str  # of the plan in use
    by_samples: Ranges  # which way is fastest on the device, from a number of samples on
    by_positions: Ranges  # the same for the positions, at the number of samples in use
    by_multiply_adds: Ranges  # which way takes the fewest, from a number of samples on


@dataclass(frozen=True)
class Block:
    """Uses whose costs have the same formulas."""

    product: Product
    operators: tuple[str, ...]
    formulas: tuple[Formula, ...]
    conditions: tuple[Condition, ...]
    sized: tuple[Sized, ...]


@dataclass(frozen=True)
class Symbolic:
    """Blocks of uses with equal formulas; printable."""

    blocks: tuple[Block, ...]
    samples: int
    device: str
    alone: tuple[str, ...]  # parameters whose uses can be contracted in one way only

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, formulas as text that sympy reads."""
        return {
            "samples": self.samples,
            "device": self.device,
            "one_way": list(self.alone),
            "blocks": [_plain(block) for block in self.blocks],
        }

    def __str__(self) -> str:
        note = (
            f"K = {self.samples} samples now, S positions, {PARTS}: blocks of rows or slices. "
            f"Fastest by the cost model of {self.device}, without a memory budget; the weighted "
            "gradient is part of all costs."
        )
        parts = [note, *(_shown(block, self.samples) for block in self.blocks)]
        if self.alone:
            listed = ", ".join(self.alone[:5]) + (", ..." if len(self.alone) > 5 else "")
            parts.append(f"per-sample gradients are the only way for {len(self.alone)}: {listed}")
        return "\n\n".join(parts)

    __repr__ = __str__


def explain(
    contributions: Sequence[Contribution], choices: Sequence[Choice], samples: int, device: str
) -> Symbolic:
    """Formulas and crossovers of the uses of a program, at a number of samples."""
    groups: dict[tuple, dict[tuple, list[tuple[Contribution, Choice]]]] = {}
    alone = []
    for contribution, choice in zip(contributions, choices):
        factors = contribution.factors
        if factors is None or len(Product.of(factors).terms) < 2:
            alone += [use.parameter for use in contribution.uses]
            continue
        product, sizes = Product.of(factors), numbers(factors.sizes(), samples)
        shared = groups.setdefault((product, path_of(product, sizes), contribution.direct), {})
        shared.setdefault(tuple(sizes.items()), []).append((contribution, choice))
    blocks = []
    for (product, path, direct), by_size in groups.items():
        members = [c for found in by_size.values() for c, _ in found]
        row = device_of(members[0].factors)
        sized = [
            _sized(product, dict(sizes), found, row, direct) for sizes, found in by_size.items()
        ]
        operators = tuple(dict.fromkeys(use.op for c in members for use in c.uses))
        blocks.append(block(product, path, operators, sized, direct))
    return Symbolic(tuple(blocks), samples, device, tuple(dict.fromkeys(alone)))


def block(
    product: Product, path: Path, operators: Iterable[str], sized: Iterable[Sized], direct: bool
) -> Block:
    """Formulas of all ways to contract a product; `direct`: what is kept gives `wᵀJ`."""
    ways = [_PAIRS] if product.result else []
    for kernel in ("factors", *product.kernels):
        ways += [
            Choice("gradients", kernel, kept) for kept in ((False, True) if direct else (False,))
        ]
    formulas = tuple(formula(product, way, path) for way in ways)
    conditions = tuple(
        condition(product, other, path)
        for other in (_PLAIN, _KEPT)
        if product.result and (direct or not other.keep)
    )
    return Block(product, tuple(operators), formulas, conditions, tuple(sized))


def formula(product: Product, way: Choice, path: Path = ()) -> Formula:
    """The steps of a way, added up; one that keeps is never cut in slices."""
    found = steps(product, way, path=path if way.kernel == "factors" else ())
    sums = (
        sympy.Add(*(getattr(s, name) for s in found))
        for name in ("multiply_adds", "bytes", "calls")
    )
    whole = way.keep or way.kernel != "factors"
    return Formula(way, *(s.subs(PARTS, 1) if whole else s for s in sums))


def condition(product: Product, other: Choice, path: Path = ()) -> Condition:
    """When pairs take fewer multiply-adds than `other`: both are `K * (a * K + b)`."""
    pairs = formula(product, _PAIRS).multiply_adds
    difference = sympy.expand((pairs - formula(product, other, path).multiply_adds) / symbol("k"))
    slope, offset = difference.coeff(symbol("k"), 1), difference.coeff(symbol("k"), 0)
    half = (PARTS + 1) / (2 * PARTS)
    slope = sympy.collect(sympy.expand(slope), PARTS)
    terms = pairs_only(product) * half
    rest = sympy.factor(sympy.simplify(slope - terms))
    return Condition(other, terms + rest, -offset)


def pairs_only(product: Product) -> Any:
    """`S² (I + O)`: multiply-adds of the pairs of one row with one column, all blocks counted."""
    step = next(s for s in steps(product, _PAIRS) if s.name == "pairs")
    return sympy.factor(sympy.simplify(step.multiply_adds.subs(PARTS, 1) / symbol("k") ** 2))


def _sized(
    product: Product,
    sizes: dict[str, int],
    found: Sequence[tuple[Contribution, Choice]],
    device: Device,
    direct: bool,
) -> Sized:
    names = tuple(dict.fromkeys(use.parameter for c, _ in found for use in c.uses))
    chosen = dict.fromkeys(choice_name(choice) for _, choice in found)
    positions: Ranges = ()
    if "s" in sizes:
        positions = ranges(product, sizes, "s", device, keep=direct)
    return Sized(
        sizes, names, " or ".join(chosen),
        ranges(product, sizes, "k", device, keep=direct),
        positions,
        ranges(product, sizes, "k", device, keep=direct, key=lambda cost: cost.multiply_adds),
    )  # fmt: skip


def ranges(
    product: Product,
    sizes: Mapping[str, int],
    label: str,
    device: Device,
    *,
    keep: bool = True,
    key: Callable[[Cost], float] = lambda cost: cost.seconds,
) -> Ranges:
    """Which way wins as the size of one label grows from 1 to `MOST`: where it first does.

    Searched by bisection between sizes that are a factor 1.4 apart.
    """
    known: dict[int, str] = {}

    def winner(size: int) -> str:
        if size not in known:
            found = candidates_at(product, {**sizes, label: size}, device, keep=keep)
            best = min(found, key=lambda cost: (key(cost), cost.seconds)).choice
            known[size] = choice_name(replace(best, parts=1))
        return known[size]

    grid = sorted({round(2 ** (half / 2)) for half in range(2 * MOST.bit_length() - 1)})
    result = [(grid[0], winner(grid[0]))]
    for low, high in itertools.pairwise(grid):
        while winner(high) != winner(low):
            left, right = low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (middle, right) if winner(middle) == winner(low) else (left, middle)
            result.append((right, winner(right)))
            low = right
    return tuple(result)


def text(expression: sympy.Expr) -> str:
    """`K**2*S` as `K²·S`."""
    return str(expression).replace("**2", "²").replace("*", "·")


def shown(found: Ranges, label: str) -> str:
    """`pairs; gradients, kept from K = 12`."""
    return "; ".join(
        name if start == 1 else f"{name} from {label} = {start}" for start, name in found
    )


def _shown(block: Block, samples: int) -> str:
    count = sum(len(sized.parameters) for sized in block.sized)
    title = f"{block.product.equation}: {count} parameters of {', '.join(block.operators)}"
    formulas = table(
        ("way", "multiply-adds", "bytes", "calls"),
        [(f.name, text(f.multiply_adds), text(f.bytes), text(f.calls)) for f in block.formulas],
    )
    body = []
    for sized in block.sized:
        sizes = " ".join(f"{k.upper()}={n}" for k, n in sized.sizes.items() if k != "k")
        more = f" +{len(sized.parameters) - 1}" if len(sized.parameters) > 1 else ""
        body.append((
            sizes, sized.parameters[0] + more, sized.choice, shown(sized.by_samples, "K"),
            shown(sized.by_positions, "S") or "-", shown(sized.by_multiply_adds, "K"),
        ))  # fmt: skip
    head = ("sizes", "parameters", f"plan at K = {samples}", "fastest", f"at K = {samples}, by S",
            "fewest multiply-adds")  # fmt: skip
    return "\n".join([title, formulas, *map(str, block.conditions), table(head, body)])


def _plain(block: Block) -> dict[str, Any]:
    return {
        "factors": block.product.equation,
        "operators": list(block.operators),
        "ways": {
            f.name: {n: str(getattr(f, n)) for n in ("multiply_adds", "bytes", "calls")}
            for f in block.formulas
        },
        "crossover": {choice_name(c.other): str(c.crossover) for c in block.conditions},
        "sizes": [
            {
                "sizes": {label.upper(): size for label, size in sized.sizes.items()},
                "parameters": list(sized.parameters),
                "plan": sized.choice,
                "fastest_from_samples": [list(pair) for pair in sized.by_samples],
                "fastest_from_positions": [list(pair) for pair in sized.by_positions],
                "fewest_multiply_adds_from_samples": [list(p) for p in sized.by_multiply_adds],
            }
            for sized in block.sized
        ],
    }
