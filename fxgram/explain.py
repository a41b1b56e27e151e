"""Tables of what was compiled: the passes, and the uses with their cost."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fxgram.planning.costs import Cost, choice_name, cost, evaluated, numbers, total
from fxgram.planning.devices import device
from fxgram.planning.plan import Plan
from fxgram.planning.steps import Product
from passes import Choice, Contribution, Factors, PassRecord


@dataclass(frozen=True)
class UseRow:
    """One use of a parameter."""

    parameter: str  # full name
    shape: tuple[int, ...]
    op: str  # operator of the site
    source: str  # the user's line
    factors: str  # labels of the factored Jacobian, "kso,ksi->oi"
    contraction: str  # "gradients" (per-sample gradients, then J Jᵀ), "pairs" or "bias"
    # of the Gramian and the weighted gradient at the last batch size, what several uses share at
    # the first of them; None: not known
    multiply_adds: float | None
    bytes: float | None  # read and written besides the operands
    method: str  # "rule", "region" (rule, then through arithmetic on parameters) or "fallback"
    seconds: float | None = None  # by the cost model
    kept: float = 0.0  # bytes of per-sample gradients that wait for the weights
    held: float = 0.0  # bytes that exist at once while it is contracted


@dataclass(frozen=True)
class Explanation:
    """One row for each use, and totals; printable."""

    rows: tuple[UseRow, ...]
    samples: int
    losses: int | None = None  # how many, where they share samples
    recompute: bool = False  # whether a second backward gives the weighted gradient
    measured: bool = False  # whether the fastest were found by timing them

    @staticmethod
    def of(
        contributions: Sequence[Contribution],
        chosen: Plan,
        samples: int,
        losses: int | None = None,
        measured: bool = False,
    ) -> "Explanation":
        """Explain the contributions at a number of samples, or of `losses` that share them."""
        rows = tuple(_rows(contributions, chosen.choices, samples))
        return Explanation(rows, samples, losses, chosen.recompute, measured)

    @property
    def multiply_adds(self) -> float:
        """Of all uses whose cost is known."""
        return sum(row.multiply_adds or 0.0 for row in self.rows)

    @property
    def seconds(self) -> float:
        """Of all uses whose cost is known, by the cost model."""
        return sum(row.seconds or 0.0 for row in self.rows)

    @property
    def kept(self) -> float:
        """Bytes of per-sample gradients that wait for the weights."""
        return sum(row.kept for row in self.rows)

    @property
    def held(self) -> float:
        """Most bytes that a use takes while it is contracted, those that are kept aside."""
        return max((row.held for row in self.rows if not row.kept), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        totals = {
            name: getattr(self, name) for name in ("multiply_adds", "seconds", "kept", "held")
        }
        return {
            "samples": self.samples,
            "plan": "measure" if self.measured else "cost",
            "recompute": self.recompute,
            **totals,
            "uses": [vars(row) for row in self.rows],
        }

    def __str__(self) -> str:
        head = ("parameter", "shape", "op", "factors", "contraction", "mul-adds", "bytes", "by",
                "source")  # fmt: skip
        body = [
            (r.parameter, "x".join(map(str, r.shape)) or "scalar", r.op, r.factors, r.contraction,
             short(r.multiply_adds), short(r.bytes), r.method, r.source)
            for r in self.rows
        ]  # fmt: skip
        return f"{table(head, body)}\n{self._close()}"

    def _close(self) -> str:
        """The line below the table: totals, and what the plan holds in memory."""
        rows = f"K = {self.samples}" if self.losses is None else f"{self.losses} losses"
        model = f"{short(1e3 * self.seconds)} ms by the cost model"
        totals = (
            f"{len(self.rows)} uses, {rows}, {short(self.multiply_adds)} multiply-adds, {model}"
        )
        parts = [totals, f"kept {_bytes(self.kept)}, up to {_bytes(self.held)} more at once"]
        if self.measured:
            parts.append("choices measured on this device")
        if self.recompute:
            parts.append("a second backward for the weighted gradient (cotangents are not kept)")
        fallbacks = sum(r.method == "fallback" for r in self.rows)
        if fallbacks:
            fallback = (
                "by the fallback (one backward of the operator per sample), not in these costs"
            )
            parts.append(f"{fallbacks} {fallback}")
        return "; ".join(parts)

    __repr__ = __str__


@dataclass(frozen=True)
class PassTable:
    """The passes of a program in order; `table["split_uses"].graph` is the graph after one."""

    records: tuple[PassRecord, ...]

    def __getitem__(self, name: str) -> PassRecord:
        for record in self.records:
            if record.name == name:
                return record
        raise KeyError(f"no pass {name!r}; there are {', '.join(r.name for r in self.records)}")

    def __iter__(self) -> Iterator[PassRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __str__(self) -> str:
        head = ("pass", "nodes before", "nodes after", "uses", "ms")
        body = [
            (r.name, str(r.nodes_before), str(r.nodes_after), str(r.uses), f"{r.milliseconds:.1f}")
            for r in self.records
        ]
        return table(head, body)

    __repr__ = __str__


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry."""
    rows = [tuple(head), tuple("-" * len(h) for h in head), *map(tuple, body)]
    widths = [max(len(row[c]) for row in rows) for c in range(len(head))]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(row, widths)).rstrip() for row in rows)


def _rows(
    contributions: Sequence[Contribution], choices: Sequence[Choice], samples: int
) -> Iterator[UseRow]:
    for contribution, choice in zip(contributions, choices):
        labels = " + ".join(f.equation for f in contribution.all_factors) or "-"
        if contribution.factors is not None:
            one = cost(contribution.factors, choice, samples)
            costs: list[Cost | None] = [one]
        else:
            costs = list(_of_jacobians(contribution, choice, samples))
        costs += [None] * (len(contribution.uses) - len(costs))
        for use, found in zip(contribution.uses, costs):
            known = found is not None and contribution.method != "fallback"
            held = 0.0 if found is None else found.held
            yield UseRow(
                use.parameter, use.shape, use.op, use.source, labels, choice_name(choice),
                found.multiply_adds if known else None,
                found.bytes if known else None,
                contribution.method,
                found.seconds if known else None,
                held if choice.keep else 0.0,
                held,
            )  # fmt: skip


def _of_jacobians(contribution: Contribution, choice: Choice, samples: int) -> Iterator[Cost]:
    """Costs of per-sample gradients that were pulled back or added: one for each that is squared.

    What makes them from the factors of all sites, and the ordinary weighted gradient, is shared by
    the uses: it stands at the first.
    """
    shared = [
        row
        for factors in contribution.all_factors
        for row in _before_squaring(factors, choice, samples)
    ]
    for node in contribution.jacobians:
        value = node.meta["val"]
        rows, *shape = numbers(dict(enumerate(value.shape)), samples).values()
        product = Product("ki->i", element=value.element_size())
        sizes = {"k": rows, "i": math.prod(shape)}
        wanted = ("Gramian", "weighted gradient") if choice.keep else ("Gramian",)
        own = [row for row in evaluated(product, choice, sizes) if row[0].name in wanted]
        held = float(product.element * rows * sizes["i"])
        yield total(choice, [*own, *shared], held, device(value.device.type))
        shared = []


def _before_squaring(factors: Factors, choice: Choice, samples: int) -> Iterator[tuple]:
    sizes = numbers(factors.sizes(), samples)
    for row in evaluated(Product.of(factors), choice, sizes):
        if row[0].name != "Gramian" and not (choice.keep and row[0].name == "weighted gradient"):
            yield row


def short(number: float | None) -> str:
    """Three digits and a unit, or "-"."""
    if number is None:
        return "-"
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def _bytes(number: float) -> str:
    """A number of bytes: "3.2 MB"."""
    text = short(number)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"
