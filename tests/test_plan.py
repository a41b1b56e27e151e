"""The planner: which way each use is contracted, as pure functions over sizes."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import fxgram
from fxgram.planning import costs
from fxgram.planning.costs import candidates_at, cost_at
from fxgram.planning.devices import DEVICES
from fxgram.planning.plan import Budget, OverBudget, plan
from fxgram.planning.steps import Product, path_of
from passes import Choice

CPU = DEVICES["cpu"]
LINEAR = Product("kso,ksi->oi")
DENSE = Product("ko,ki->oi")
CONVOLUTION = Product("kos,kis->oi", made="kis", kernels=("calls", "groups"), channels=64)
EMBEDDING = Product("ksv,ksd->vd", one_hot=True)
PRODUCTS = (
    *(LINEAR, DENSE, CONVOLUTION, EMBEDDING, Product("kos,kois->oi", kernels=("calls",))),
    *(Product("k->"), Product("k,k->"), Product("ks,ks->")),
)


def sizes(product, **known):
    """Give every label a size."""
    return {label: known.get(label, 24) for label in product.labels}


def best(product, limit=math.inf, keep=True, **known):
    found = candidates_at(product, sizes(product, **known), CPU, keep=keep, limit=limit)
    return found[0].choice


def test_dense_layers_take_pairs_for_every_large_batch():
    for k in (32, 256, 2048):
        assert best(DENSE, k=k, o=256, i=512).contraction == "pairs"


def test_long_sequences_take_gradients():
    assert best(LINEAR, k=8, s=4, o=512, i=512).contraction == "pairs"
    assert best(LINEAR, k=8, s=512, o=512, i=512).contraction == "gradients"


def test_choice_changes_with_the_number_of_samples():
    """Pairs grow with K², per-sample gradients mostly with K."""
    few = best(LINEAR, keep=False, k=2, s=20, o=128, i=128)
    many = best(LINEAR, keep=False, k=512, s=20, o=128, i=128)
    assert (few.contraction, many.contraction) == ("pairs", "gradients")


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.equation)
def test_candidates_come_cheapest_first(product):
    found = candidates_at(product, sizes(product, k=16), CPU)
    seconds = [c.seconds for c in found]
    assert seconds == sorted(seconds)
    assert len({c.choice for c in found}) == len(found)


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.equation)
def test_limit_holds_or_the_least_is_offered(product):
    at = sizes(product, k=16)
    everything = candidates_at(product, at, CPU)
    for limit in (2.0**8, 2.0**12, 2.0**16):
        found = candidates_at(product, at, CPU, limit=limit)
        least = min(c.held for c in found)
        assert all(c.held <= limit for c in found) or len(found) == 1
        assert least <= min(c.held for c in everything)


def test_nothing_is_kept_where_it_may_not_be():
    for product in PRODUCTS:
        found = candidates_at(product, sizes(product, k=16), CPU, keep=False)
        assert not any(c.choice.keep for c in found)


def test_costs_are_those_of_the_formulas():
    """`K²S²(I + O)`, half by symmetry where rows come in blocks."""
    at = sizes(LINEAR, k=4, s=3, o=5, i=7)
    ordinary = 4 * 3 * 5 * 7
    whole = cost_at(LINEAR, Choice("pairs"), at, CPU)
    assert whole.multiply_adds == (4 * 3) ** 2 * (5 + 7) + ordinary
    halves = cost_at(LINEAR, Choice("pairs", parts=2), at, CPU)
    assert halves.multiply_adds == (4 * 3) ** 2 * (5 + 7) * 3 / 4 + ordinary
    gradients = cost_at(LINEAR, Choice("gradients"), at, CPU)
    assert gradients.multiply_adds == 2 * ordinary + 4**2 * 5 * 7
    kept = cost_at(LINEAR, Choice("gradients", keep=True), at, CPU)
    assert kept.multiply_adds == ordinary + 4**2 * 5 * 7 + 4 * 5 * 7
    assert kept.held == gradients.held == 4 * 4 * 5 * 7


def test_faster_device_takes_less():
    fast = replace(CPU, products=1e15, bandwidth=1e15, call=0.0, fresh=1e15)
    at = sizes(LINEAR, k=64, s=64)
    for choice in (Choice("pairs"), Choice("gradients"), Choice("gradients", keep=True)):
        assert cost_at(LINEAR, choice, at, fast).seconds < cost_at(LINEAR, choice, at, CPU).seconds


def test_groups_of_few_channels_are_slow():
    at = sizes(CONVOLUTION, k=16, o=64, i=27, s=1024)
    way = Choice("gradients", "groups")
    few = cost_at(replace(CONVOLUTION, channels=3), way, at, CPU)
    assert few.seconds > cost_at(CONVOLUTION, way, at, CPU).seconds


def test_three_operands_in_the_order_of_opt_einsum():
    """`[k,o] x [k,i] x [k,j]`: the two small ones first, so one product of the full size."""
    product = Product("ko,ki,kj->oij")
    at = {"k": 6, "o": 50, "i": 4, "j": 3}
    assert path_of(product, at)[0] == (1, 2)
    found = cost_at(product, Choice("gradients"), at, CPU)
    full = 6 * 50 * 4 * 3
    squared, weighted = 6**2 * 50 * 4 * 3, full
    assert found.multiply_adds == 6 * 4 * 3 + full + squared + weighted


class Tied(nn.Module):
    """One weight used twice, another once."""

    def __init__(self):
        super().__init__()
        self.twice, self.once = nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x):
        return self.once(self.twice(self.twice(x).tanh()).tanh().mean(1))


def squares(model, x):
    return model(x).square().sum(1)


def program(model):
    return fxgram.compile(model, squares, check=False).prepare(torch.randn(6, 7, 12))._used()


def kept_first(factors, samples, *, keep=True, limit=math.inf):
    """Let keeping be fastest wherever it is possible."""
    found = costs.candidates(factors, samples, keep=keep, limit=limit)
    return tuple(sorted(found, key=lambda c: not c.choice.keep))


def test_all_uses_of_a_parameter_are_kept_or_none():
    contributions = program(Tied()).contributions
    twice = [at for at, c in enumerate(contributions) if c.uses[0].parameter == "twice.weight"]
    assert len(twice) == 2

    def one_of_them(factors, samples, *, keep=True, limit=math.inf):
        found = costs.candidates(factors, samples, keep=keep, limit=limit)
        first = factors is contributions[twice[0]].factors
        return tuple(sorted(found, key=lambda c: c.choice.keep is not first))

    choices = plan(contributions, 6, Budget(1e12), one_of_them).choices
    assert [choices[at].keep for at in twice] == [False, False]
    choices = plan(contributions, 6, Budget(1e12), kept_first).choices
    assert [choices[at].keep for at in twice] == [True, True]


def test_budget_decides_what_is_kept():
    contributions = program(Tied()).contributions
    kept = plan(contributions, 6, Budget(1e12), kept_first).choices
    none = plan(contributions, 6, Budget(0.0, "cotangents"), kept_first).choices
    assert any(c.keep for c in kept)
    assert not any(c.keep for c in none)
    recompute = plan(contributions, 6, Budget(1e12, "recompute"))
    assert recompute.recompute
    assert not any(c.keep for c in recompute.choices)


def test_strict_budget_names_the_least():
    contributions = program(Tied()).contributions
    with pytest.raises(OverBudget) as raised:
        plan(contributions, 6, Budget(1.0, "auto", strict=True))
    assert raised.value.least > 1
    plan(contributions, 6, Budget(raised.value.least, "auto", strict=True))


def test_plans_follow_the_number_of_samples():
    """One program, planned anew for every batch size."""
    step = fxgram.compile(nn.Linear(128, 384), lambda m, x: m(x).square().mean((1, 2)), check=False)
    seen = {}
    for k in (2, 300):
        step.prepare(torch.randn(k, 20, 128))
        explained = step.explain()
        seen[k] = explained.rows[0].contraction.split(" ")[0].strip(",")
        assert explained.samples == k
        assert step._used().plan(k) == step._used().plan(k)
    assert seen == {2: "pairs", 300: "gradients"}
