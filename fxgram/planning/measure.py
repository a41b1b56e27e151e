"""`plan="measure"`: time the few best ways to contract each use, once for each shape and device."""

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import fx

from fxgram.planning import costs, timings
from fxgram.planning.costs import Cost, choice_name, numbers
from fxgram.planning.subgraph import Cutter, Subgraph, stand_in
from passes import Choice, Contribution, Factors, Spec

WITHIN, MOST = 4.0, 5  # how far from the cheapest by the model, and how many, are timed
_ROUNDS, _ROUND_SECONDS = 5, 2e-3
_LONG, _FAR = 0.02, 4.0  # seconds, and times the fastest, that are too slow for several rounds
_ORDINARY = "weighted gradient"  # stands among the choices: what all that keep nothing add
_log = logging.getLogger("fxgram")


class Measured:
    """Ways to contract the uses of a program, fastest first: takes the place of `candidates`.

    What is timed are the nodes that `contract` emits for a choice, with operands laid out by
    lowering, and the weighted gradient: from what is kept, or the ordinary one. Seconds that are
    on disk already are not measured again.
    """

    def __init__(self, lowered: fx.GraphModule, spec: Spec, contributions: Sequence[Contribution]):
        self._cutter = Cutter(lowered, spec)
        self._of = {id(c.factors): c for c in contributions if c.factors is not None}
        self._uses = Counter(p for c in contributions for p in {use.parameter for use in c.uses})
        self._seconds: dict[Path, timings.Seconds] = {}
        self._new: dict[Path, timings.Seconds] = {}
        self._keys: dict[tuple[int, int], str] = {}
        self._timed, self._spent = 0, 0.0

    def __call__(
        self, factors: Factors, samples: int, *, keep: bool = True, limit: float = math.inf
    ) -> tuple[Cost, ...]:
        """Costs with measured seconds, fastest first, then those too far off to be timed.

        Ties are decided by the cost model: sorting keeps its order.
        """
        found = costs.candidates(factors, samples, keep=keep, limit=limit)
        near = [c for c in found if c.seconds <= WITHIN * found[0].seconds][:MOST]
        if len(near) == 1:
            return found
        seconds = self.seconds(self._of[id(factors)], samples, [c.choice for c in near])
        known = [replace(c, seconds=seconds[c.choice]) for c in near]
        return (*sorted(known, key=lambda c: c.seconds), *found[len(near) :])

    def seconds(
        self, contribution: Contribution, samples: int, choices: Sequence[Choice]
    ) -> dict[Choice, float]:
        """Seconds of each choice for a contribution, its weighted gradient included."""
        factors = contribution.factors
        assert factors is not None
        path = timings.cache_file(factors.operands[-1].meta["val"].device)
        if path not in self._seconds:
            self._seconds[path] = timings.read(path)
        key = self._key(contribution, samples)
        known = self._seconds[path].setdefault(key, {})
        names = {choice_name(choice): choice for choice in choices}
        missing = {name: choice for name, choice in names.items() if name not in known}
        plain = _ORDINARY not in known and not all(choice.keep for choice in choices)
        if missing or plain:
            found = self._time(contribution, samples, missing, plain)
            known.update(found)
            self._new.setdefault(path, {}).setdefault(key, {}).update(found)
        share = len({use.parameter for use in contribution.uses}) / max(
            self._uses[use.parameter] for use in contribution.uses
        )
        return {
            choice: known[name] + (0.0 if choice.keep else known[_ORDINARY] * share)
            for name, choice in names.items()
        }

    def save(self) -> bool:
        """Write what was measured and say what it took.

        True if another process was first with some of it: its figures then hold for all.
        """
        changed = False
        for path, seconds in self._new.items():
            found = timings.add(path, seconds)
            changed |= any(found[key][n] != s for key, of in seconds.items() for n, s in of.items())
            self._seconds[path] = found
        if self._timed:
            _log.info(
                "measured %d candidates of %d kinds of uses in %.1f s: %s",
                self._timed, sum(map(len, self._new.values())), self._spent,
                ", ".join(map(str, self._new)),
            )  # fmt: skip
        self._new, self._timed, self._spent = {}, 0, 0.0
        return changed

    def _key(self, contribution: Contribution, samples: int) -> str:
        """What tells uses apart on disk: for people first, then a digest of all that is run."""
        found = self._keys.get((id(contribution), samples))
        if found is None:
            factors = contribution.factors
            assert factors is not None
            value = factors.operands[-1].meta["val"]
            sizes = numbers(factors.sizes(), samples)
            listed = " ".join(f"{label.upper()}={size}" for label, size in sizes.items())
            digest = hashlib.sha256(self._cutter.text(contribution, samples).encode()).hexdigest()
            dtype = str(value.dtype).removeprefix("torch.")
            found = f"{contribution.uses[0].op} {factors.equation} {listed} {dtype} {digest[:12]}"
            self._keys[id(contribution), samples] = found
        return found

    def _time(
        self, contribution: Contribution, samples: int, choices: Mapping[str, Choice], plain: bool
    ) -> dict[str, float]:
        """Median seconds of each choice, and of the ordinary weighted gradient if `plain`."""
        start = time.perf_counter()
        factors = contribution.factors
        assert factors is not None
        parts = {n: self._cutter.contracted(contribution, c) for n, c in choices.items()}
        if plain:
            parts[_ORDINARY] = self._cutter.gradients(contribution)
        inputs = _Inputs(samples, factors)
        runs = {name: _runner(part, inputs) for name, part in parts.items()}
        device = factors.operands[-1].meta["val"].device
        with torch.no_grad():
            found = time_all(runs, device)
        self._timed += len(choices)
        self._spent += time.perf_counter() - start
        return found


class _Inputs:
    """Random arguments by name: ways to contract one use share them."""

    def __init__(self, samples: int, factors: Factors):
        self._samples = samples
        self._below = factors.one_hot or 2
        self._generators: dict[torch.device, torch.Generator] = {}
        self._made: dict[str, Any] = {}

    def __call__(self, name: str, value: Any) -> Any:
        if name not in self._made:
            generator = None
            if isinstance(value, torch.Tensor):
                generator = self._generators.get(value.device)
                if generator is None:
                    generator = torch.Generator(value.device).manual_seed(0)
                    self._generators[value.device] = generator
            self._made[name] = stand_in(value, self._samples, self._below, generator)
        return self._made[name]


def _runner(part: Subgraph, inputs: _Inputs) -> Callable[[], Any]:
    arguments = [inputs(name, value) for name, value in part.inputs.items()]
    forward = part.module.forward
    return lambda: forward(*arguments)


def time_all(runs: Mapping[str, Callable[[], Any]], device: torch.device) -> dict[str, float]:
    """Median seconds of each function, in rounds, so that a slow phase hits all of them alike.

    Those that are far from the fastest are timed once alone: they cannot win.
    """
    for run in runs.values():
        run()
    seconds = {name: [_seconds(run, 1, device)] for name, run in runs.items()}
    limit = max(_LONG, _FAR * min(first for (first,) in seconds.values()))
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            first = seconds[name][0]
            if first <= limit:
                repeats = max(1, math.ceil(_ROUND_SECONDS / max(first, 1e-6)))
                seconds[name].append(_seconds(run, repeats, device))
    return {name: median(values[1:] or values) for name, values in seconds.items()}


def _seconds(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Seconds of one run; with one thread those of the thread, or other programs would count."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter
    _wait(device)
    start = clock()
    for _ in range(repeats):
        run()
    _wait(device)
    return (clock() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
