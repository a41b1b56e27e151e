"""Whatever the planner chooses, the answer is the same."""

from dataclasses import replace

import pytest
import torch
from oracle import assert_gradients_close, assert_gramian_close, evaluate, gradient_of, trainable
from zoo import CASES

import fxgram
from fxgram.batch import flatten
from fxgram.planning import plan
from passes import Choice

WAYS = ("pairs", "slices", "calls", "groups", "columns")


def choice_of(contribution, samples, way):
    """The choice of one kind for a contribution, or the usual one where there is none."""
    if contribution.summands:
        return Choice("pairs", parts=2) if way == "pairs" else Choice()
    if contribution.factors is None:
        return Choice()
    found = [c.choice for c in plan.candidates(contribution.factors, samples)]
    if way == "slices" and contribution.factors.one_hot is None:
        inputs, result = contribution.factors.equation.split("->")
        sizes = plan.numbers(contribution.factors.sizes(), samples)
        longest = max((sizes[c] for c in result), default=1)
        if "," in inputs and longest > 1:
            return Choice(parts=min(longest, 3))
    kinds = {
        "pairs": [replace(c, parts=min(2, samples)) for c in found if c.contraction == "pairs"],
        "calls": [c for c in found if c.kernel == "calls"],
        "groups": [c for c in found if c.kernel == "groups"],
        "columns": [c for c in found if c == Choice()],
    }
    return (kinds.get(way) or [Choice()])[0]


def _cases():
    """Every second case, and all of them with `-m slow`."""
    for at, case in enumerate(CASES):
        marks = (pytest.mark.slow,) if at % 2 or case.large else ()
        yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", list(_cases()))
def test_every_plan_gives_the_same_answer(case):
    model = case.make(torch.float64)
    k = next((k for k in (3, 2) if k in case.sizes), max(case.sizes))
    batch = case.batch(k, torch.float64)
    step = fxgram.compile(model, case.objective, batch_dim=case.batch_dim, check=False)
    state = {name: t.clone() for name, t in model.state_dict().items()}

    def run(call):
        model.load_state_dict(state)
        torch.manual_seed(0)
        return call()

    losses, expected = run(lambda: step(*batch))
    weights = torch.linspace(-1, 2, losses.numel(), dtype=losses.dtype).reshape(losses.shape)
    eager = run(lambda: evaluate(model, case.objective, batch))
    gradients = gradient_of(eager, trainable(model), weights)
    _, norms = run(lambda: step.diagonal(*batch))
    assert_gramian_close(norms.diag(), expected.diagonal().diag(), case.rtol, "diagonal")
    program = step._last
    samples = program.last_samples
    tried = set()
    for way in WAYS:
        choices = tuple(choice_of(c, samples, way) for c in program.contributions)
        if choices in tried:
            continue
        tried.add(choices)
        for product in ("gramian", "diagonal"):
            chosen = plan.Plan(choices, recompute=way in ("pairs", "calls"))
            tensors = tuple(flatten(batch, {}, case.batch_dim).tensors)
            built = program.built(chosen, product)
            losses, found, _ = run(lambda built=built, tensors=tensors: built(tensors))
            wanted = expected if product == "gramian" else expected.diagonal().diag()
            found = found if product == "gramian" else found.diag()
            assert_gramian_close(found, wanted, case.rtol, f"{way} {product}")
            model.zero_grad(set_to_none=True)
            losses.backward(weights)
            actual = {name: p.grad for name, p in trainable(model).items()}
            assert_gradients_close(actual, gradients, case.rtol)
    assert tried
