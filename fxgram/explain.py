"""Tables of what was compiled: the passes, and the uses with their cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fxgram import plan
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
    multiply_adds: float | None  # of the contraction at the last batch size; None: not known
    bytes: float | None  # read and written besides the operands
    method: str  # "rule", "region" (rule, then through arithmetic on parameters) or "fallback"


@dataclass(frozen=True)
class Explanation:
    """One row for each use, and totals; printable."""

    rows: tuple[UseRow, ...]
    samples: int
    losses: int | None = None  # how many, where they share samples
    recompute: bool = False  # whether a second backward gives the weighted gradient

    @staticmethod
    def of(
        contributions: Sequence[Contribution],
        chosen: plan.Plan,
        samples: int,
        losses: int | None = None,
    ) -> "Explanation":
        """Explain the contributions at a number of samples, or of `losses` that share them."""
        rows = tuple(_rows(contributions, chosen.choices, samples))
        return Explanation(rows, samples, losses, chosen.recompute)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"samples": self.samples, "uses": [vars(row) for row in self.rows]}

    def __str__(self) -> str:
        head = (
            "parameter",
            "shape",
            "op",
            "factors",
            "contraction",
            "mul-adds",
            "bytes",
            "by",
            "source",
        )
        body = [
            (r.parameter, "x".join(map(str, r.shape)) or "scalar", r.op, r.factors, r.contraction,
             _short(r.multiply_adds), _short(r.bytes), r.method, r.source)
            for r in self.rows
        ]  # fmt: skip
        total = sum(r.multiply_adds or 0 for r in self.rows)
        fallbacks = sum(r.method == "fallback" for r in self.rows)
        rows = f"K = {self.samples}" if self.losses is None else f"{self.losses} losses"
        close = f"{len(self.rows)} uses, {rows}, {_short(total)} multiply-adds"
        if self.recompute:
            close += "; a second backward for the weighted gradient (cotangents are not kept)"
        if fallbacks:
            close += f"; {fallbacks} by the fallback (one backward of the operator per sample)"
        return f"{table(head, body)}\n{close}"

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
        costs = [plan.cost(f, _for(choice, f), samples) for f in contribution.all_factors]
        for at, use in enumerate(contribution.uses):
            # What several uses cost together stands at the first of them.
            known = contribution.method not in ("fallback", "losses") and at == 0
            yield UseRow(
                use.parameter, use.shape, use.op, use.source, labels, _name(choice),
                sum(c.multiply_adds for c in costs) if known else None,
                sum(c.bytes for c in costs) if known else None,
                contribution.method,
            )  # fmt: skip


def _for(choice: Choice, factors: Factors) -> Choice:
    """The choice of a sum of several factors, as one of them is contracted."""
    known = choice.kernel in {k.name for k in factors.kernels}
    contraction = "gradients" if choice.contraction == "bias" else choice.contraction
    kernel = choice.kernel if known else "factors"
    return replace(choice, contraction=contraction, kernel=kernel)


def _name(choice: Choice) -> str:
    """What the table calls a choice: "gradients, kept", "gradients by calls", "pairs"."""
    kernel = "" if choice.kernel == "factors" else f" by {choice.kernel}"
    kind = "slices" if choice.contraction == "gradients" else "blocks"
    parts = f" in {choice.parts} {kind}" if choice.parts > 1 else ""
    return f"{choice.contraction}{kernel}{parts}{', kept' if choice.keep else ''}"


def _short(number: float | None) -> str:
    if number is None:
        return "-"
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"
