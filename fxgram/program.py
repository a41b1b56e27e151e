"""A compiled program: one captured graph, its passes, and the modules that a call runs."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import fx, nn

import passes
from fxgram.captured import Captured
from fxgram.errors import InvalidArgument
from fxgram.options import Options
from fxgram.planned import Planned
from fxgram.planning import memory
from fxgram.planning.footprint import footprint, ordinary_backward, sized
from fxgram.planning.measure import Measured
from fxgram.planning.plan import Budget, OverBudget, Plan, candidates, plan, within
from fxgram.rules import find
from passes import PassRecord, Spec

Product = Literal["gramian", "diagonal"]
_STEPS = 8  # of a backward for each loss, if no budget asks for more
_FREE = 2**26  # bytes that nobody misses: PyTorch itself takes several times as many
# passes that depend on the batch size, through the plan
_PLANNED = ("contract", "recompute", "clean", "schedule")


class Program:
    """Compiled for one kind of batch; serves every number of samples of that kind.

    `coupled`: losses may share samples. `loss_by_loss`: they do, or no sample axis is followed.

    Raises: PassError.
    """

    def __init__(
        self,
        captured: Captured,
        model: nn.Module,
        samples: int,
        *,
        coupled: bool,
        loss_by_loss: bool,
        cross_terms: bool,
        rules: Callable = find,
        options: Options | None = None,
    ):
        self.captured, self.model = captured, model
        self.options = options or Options()
        one_size = captured.samples is None and not coupled
        self.spec = Spec(
            captured.inputs, captured.samples, rules, calls=captured.calls,
            loss_by_loss=loss_by_loss, count=samples if one_size else None,
            cross_terms=cross_terms,
            rows=self._rows(samples) if loss_by_loss else 1,
        )  # fmt: skip
        fixed = [p for p in passes.PASSES if p.__name__ not in _PLANNED]
        first = 1 + next(at for at, p in enumerate(fixed) if p.__name__ == "batch_axes")
        sited, records = passes.run(captured.gm, self.spec, fixed[:first])
        self.lowered, more = passes.run(sited, self.spec, fixed[first:], keep=False)
        self._records = records + more
        self._planned: dict[tuple[Plan, Product], Planned] = {}
        self._choices: dict[tuple[int, Product, bool], Planned] = {}
        self._plans: dict[tuple[int, Product, bool], Plan] = {}
        self.last_samples = samples

    def _rows(self, samples: int) -> int:
        """How many losses go backward at once: each such step is traced, so eight if unasked."""
        limit = self.options.memory_budget
        rows = memory.rows_at_once(self.captured.gm, samples, limit or _FREE)
        *_, output = self.captured.gm.graph.nodes
        losses = output.args[0][0].meta["val"]
        return rows if limit else max(rows, math.ceil(losses.numel() / _STEPS))

    @property
    def records(self) -> list[PassRecord]:
        """What each pass did, those of the last plan included."""
        return self._records + self.last.records

    @property
    def last(self) -> Planned:
        """The modules for the number of samples used last."""
        return self.planned(self.last_samples)

    @property
    def sited(self) -> fx.Graph:
        """The graph of the user's operators, with the sample axis of every value noted."""
        return next(r.snapshot for r in self._records if r.name == "batch_axes")

    @property
    def unproven(self) -> bool:
        """Whether an operator could carry gradient between samples, for all that the graph says."""
        return bool(passes.facts(self.lowered).get("unproven"))

    def serves(self, samples: int) -> bool:
        """Whether the program holds for this number of samples."""
        low, high = self.captured.sizes
        return low <= samples <= high

    def losses_like(self, samples: int) -> torch.Tensor:
        """An uninitialised tensor of the losses' shape, dtype and device."""
        *_, output = self.lowered.graph.nodes
        value = output.args[0]["losses"].meta["val"]
        shape = [samples if d == self.losses_axis.dim else n for d, n in enumerate(value.shape)]
        return torch.empty(shape, dtype=value.dtype, device=value.device)

    @property
    def losses_axis(self) -> passes.SampleAxis:
        """Where the samples sit in the losses."""
        return passes.facts(self.lowered)["losses_axis"]

    @property
    def contributions(self) -> tuple[passes.Contribution, ...]:
        """The summands of the Gramian."""
        return passes.facts(self.lowered)["contributions"]

    def planned(self, samples: int, product: Product = "gramian") -> Planned:
        """The modules for this number of samples; batch sizes with equal plans share them."""
        key = samples, product, self.measures
        if key not in self._choices:
            self._choices[key] = self.built(self.plan(samples, product), product)
        return self._choices[key]

    @property
    def measures(self) -> bool:
        """Whether plans are measured; timings could differ, so determinism rules them out."""
        return self.options.plan == "measure" and not torch.are_deterministic_algorithms_enabled()

    @functools.cached_property
    def _measured(self) -> Measured:
        return Measured(self.lowered, self.spec, self.contributions)

    def built(self, plan: Plan, product: Product = "gramian") -> Planned:
        """The modules of one plan."""
        key = plan, product
        if key not in self._planned:
            spec = replace(
                self.spec, choices=plan.choices, recompute=plan.recompute, product=product
            )
            late = [p for p in passes.PASSES if p.__name__ in _PLANNED]
            gm, records = passes.run(self.lowered, spec, late, keep=False)
            self._planned[key] = Planned(self.captured, self.model, passes.partition(gm), records)
        return self._planned[key]

    def memory(self, tensors: tuple[torch.Tensor, ...], samples: int) -> memory.Memory:
        """What a step on this batch allocates at once; nothing is run on it."""
        planned = self.planned(samples)
        found = footprint(planned.partition, planned.inputs(tensors), planned.without_grad())
        ordinary = int(memory.ordinary(self.lowered, self.spec, samples))
        return memory.Memory(found.forward, found.kept, found.backward, ordinary)

    def plan(self, samples: int, product: Product = "gramian") -> Plan:
        """How each contribution is contracted at this number of samples.

        Raises: InvalidArgument if nothing fits the memory budget.
        """
        key = samples, product, self.measures
        if key not in self._plans:
            found = self._plan(samples, product)
            if self.measures and self._measured.save():
                found = self._plan(samples, product)  # another process may have been faster
            self._plans[key] = found
        return self._plans[key]

    def _plan(self, samples: int, product: Product) -> Plan:
        limit, retain = self.options.memory_budget, self.options.retain
        ways = self._measured if self.measures and product == "gramian" else candidates

        def make(budget: Budget) -> Plan:
            if product == "gramian":
                return plan(self.contributions, samples, budget, ways)
            one = replace(budget, bytes=budget.bytes / samples, freed=budget.freed / samples)
            return plan(self.contributions, 1, one)  # K Gramians of one sample each

        if limit is None:
            ordinary = memory.ordinary(self.lowered, self.spec, samples)
            freed = memory.freed(self.lowered, samples)
            return make(Budget(max(ordinary / 2, _FREE), retain, freed=freed))
        again, inputs = make(Budget(limit, "recompute")), self._sized(samples)
        ordinary = ordinary_backward(self.built(again, product).partition, inputs)

        def excess(found: Plan) -> int:
            parts = self.built(found, product).partition
            new = {p for part in parts.parts for p in part.parameters}
            return footprint(parts, inputs, new).peak - ordinary

        try:
            return within(limit, retain, excess, make)
        except OverBudget as error:
            losses = self.losses_like(samples).numel()
            raise InvalidArgument(
                f"memory_budget={limit} bytes is too small: with {losses} losses the {product} "
                f"needs {math.ceil(error.least)} bytes beyond the ordinary forward and backward."
            ) from None

    def _sized(self, samples: int) -> list[torch.Tensor]:
        """Fake inputs of the modules."""
        return [
            sized(n.meta["val"], samples)
            for n in self.lowered.graph.nodes
            if n.op == "placeholder" and n.name not in (passes.SEEDS, passes.WEIGHTS)
        ]
