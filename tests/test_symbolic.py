"""`step.explain(symbolic=True)`: formulas that are those of the planner, and where ways cross."""

import itertools
import json
from dataclasses import replace

import opt_einsum
import pytest
import sympy
import torch
from torch import nn

import fxgram
from fxgram import symbolic
from fxgram.orders import report
from fxgram.planning.costs import candidates_at, choice_name, cost_at
from fxgram.planning.devices import DEVICES
from fxgram.planning.steps import PARTS, Product, path_of, symbol
from passes import Choice

CPU = DEVICES["cpu"]
K, S, I, O = (symbol(label) for label in "ksio")  # noqa: E741
LINEAR = Product("kso,ksi->oi")
PRODUCTS = (
    LINEAR,
    Product("ko,ki->oi"),
    Product("kos,kis->oi", made="kis", kernels=("calls", "groups"), channels=5),
    Product("kois,kojs->oij", made="kojs", kernels=("calls", "groups"), channels=1),
    Product("ksv,ksd->vd", one_hot=True),
    Product("ko,ki,kj->oij", element=8),
)
WAYS = [
    Choice("pairs"),
    Choice("pairs", parts=4),
    Choice("gradients"),
    Choice("gradients", keep=True),
    Choice("gradients", parts=3),
    Choice("gradients", "calls"),
    Choice("gradients", "groups", keep=True),
]


def sizes(product, k=6):
    return {"k": k, **{c: 3 + 2 * at for at, c in enumerate(product.labels) if c != "k"}}


@pytest.mark.parametrize(
    ("product", "way"),
    [
        pytest.param(product, way, id=f"{product.equation} {choice_name(way)}")
        for product in PRODUCTS
        for way in WAYS
        if way.kernel in ("factors", *product.kernels)
    ],
)
def test_formulas_give_the_numbers_of_the_planner(product, way):
    at = sizes(product)
    formula = symbolic.formula(product, way, path_of(product, at))
    values = {symbol(label): size for label, size in at.items()} | {PARTS: way.parts}
    found = cost_at(product, way, at, CPU)
    assert float(formula.multiply_adds.subs(values)) == found.multiply_adds
    assert float(formula.bytes.subs(values)) == found.bytes


def test_formulas_of_a_linear_layer():
    half = (PARTS + 1) / (2 * PARTS)
    expected = {
        Choice("pairs"): half * K**2 * S**2 * (I + O) + K * S * I * O,
        Choice("gradients"): 2 * K * S * I * O + K**2 * I * O,
        Choice("gradients", keep=True): K * S * I * O + K**2 * I * O + K * I * O,
    }
    for way, formula in expected.items():
        assert sympy.simplify(symbolic.formula(LINEAR, way).multiply_adds - formula) == 0


def test_crossover_of_a_linear_layer():
    """Pairs win below `K* = I·O / (S²(I + O)(parts + 1)/(2 parts) - I·O)`."""
    found = symbolic.condition(LINEAR, Choice("gradients", keep=True))
    expected = I * O / (S**2 * (I + O) * (PARTS + 1) / (2 * PARTS) - I * O)
    assert sympy.simplify(found.crossover - expected) == 0
    plain = symbolic.condition(LINEAR, Choice("gradients"))
    assert sympy.simplify(plain.crossover - S * expected) == 0


@pytest.mark.parametrize(
    "other", [Choice("gradients"), Choice("gradients", keep=True)], ids=choice_name
)
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.equation)
def test_condition_says_which_takes_fewer(product, other):
    for k in (1, 2, 5, 30, 400):
        at = sizes(product, k)
        for parts in (1, 8):
            values = {symbol(c): n for c, n in at.items()} | {PARTS: parts}
            found = symbolic.condition(product, other, path_of(product, at))
            holds = k * found.slope.subs(values) < found.offset.subs(values)
            pairs = cost_at(product, Choice("pairs", parts=parts), at, CPU).multiply_adds
            rival = cost_at(product, other, at, CPU).multiply_adds
            assert bool(holds) == (pairs < rival)


@pytest.mark.parametrize("label", ["k", "s"])
def test_ranges_start_where_the_winner_changes(label):
    at = {"k": 8, "s": 20, "o": 128, "i": 512}

    def winner(size):
        choice = candidates_at(LINEAR, {**at, label: size}, CPU)[0].choice
        return choice_name(replace(choice, parts=1))

    found = symbolic.ranges(LINEAR, at, label, CPU)
    assert found[0] == (1, winner(1))
    assert len(found) > 1
    for (_, before), (start, after) in itertools.pairwise(found):
        assert (winner(start - 1), winner(start)) == (before, after)


class Model(nn.Module):
    """Fifty equal layers, a convolution and a head."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(4, 8, 3, padding=1)
        self.body = nn.Sequential(*(nn.Linear(8, 8) for _ in range(50)))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(self.first(x).mT).tanh().mean(1))


@pytest.fixture(scope="module")
def step():
    """Give a step for seven positions, 6 samples."""
    step = fxgram.compile(Model(), lambda m, x: m(x).square().sum(1), check=False)
    return step.prepare(torch.randn(6, 4, 7))


def test_equal_uses_stand_in_one_row(step):
    found = step.explain(symbolic=True)
    assert {block.product.equation for block in found.blocks} == {
        "kso,ksi->oi", "kos,kis->oi", "ko,ki->oi",
    }  # fmt: skip
    (body,) = [b for b in found.blocks if b.product.equation == "kso,ksi->oi"]
    (row,) = body.sized
    assert len(row.parameters) == 50
    assert row.sizes == {"k": 6, "s": 7, "o": 8, "i": 8}
    assert len(str(found).splitlines()) < 50
    assert "first.bias" in found.alone


def test_prints_formulas_conditions_and_crossovers(step):
    text = str(step.explain(symbolic=True))
    for words in ("I·K²·O", "iff K·(", "from K = ", "from S = ", "body.0.weight +49", "K = 6"):
        assert words in text


def test_plain_data_that_sympy_reads(step):
    data = json.loads(json.dumps(step.explain(symbolic=True).to_dict()))
    assert data["samples"] == 6
    (body,) = [b for b in data["blocks"] if b["factors"] == "kso,ksi->oi"]
    symbols = {"K": K, "S": S, "I": I, "O": O, "parts": PARTS}
    for name, way in (("pairs", Choice("pairs")), ("gradients", Choice("gradients"))):
        read = sympy.sympify(body["ways"][name]["multiply_adds"], locals=symbols)
        assert sympy.simplify(read - symbolic.formula(LINEAR, way).multiply_adds) == 0
    (row,) = body["sizes"]
    assert row["fastest_from_samples"][0][0] == 1


class Bilinear(nn.Module):
    """Three factors: the cotangent and two inputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5, 2, 2))

    def forward(self, x, y):
        return nn.functional.bilinear(x, y, self.weight)


def test_three_factors_are_contracted_in_the_order_that_was_counted(monkeypatch):
    """Capturing switches opt_einsum off; when a step runs, `torch.einsum` takes its paths again."""
    at = {"k": 300, "o": 5, "i": 2, "j": 2}
    expected = path_of(Product("ko,ki,kj->oij"), at)
    step = fxgram.compile(Bilinear(), lambda m, x, y: m(x, y).square().sum(1), memory_budget="1GB")
    batch = torch.randn(300, 2), torch.randn(300, 2)
    step(*batch)
    (row,) = step.uses
    assert row.contraction.startswith("gradients")
    paths = []
    real = opt_einsum.contract_path

    def spy(*args, **kwargs):
        found = real(*args, **kwargs)
        paths.append(found[0])
        return found

    monkeypatch.setattr(opt_einsum, "contract_path", spy)
    step(*batch)
    assert [tuple(map(tuple, path)) for path in paths] == [expected]


def test_table_of_a_linear_layer():
    """`fxgram orders`: without positions pairs take the fewest multiply-adds for every batch."""
    lines = report([64, 256], [1, 64]).splitlines()
    for line in lines:
        if line.split()[:2] in (["64", "1"], ["256", "1"]):
            assert line.split()[2] == "pairs"
        if line.split()[:2] in (["64", "64"], ["256", "64"]):
            assert line.split()[2] == "gradients,"
    for words in ("pairs take fewer multiply-adds than gradients, kept iff", "I = O", "fastest on"):
        assert words in "\n".join(lines)
