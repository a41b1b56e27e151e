"""The benchmarks check before they time, and write what they measured."""

import importlib.util
import json
from functools import partial

import pytest

from benchmarks.cases import CASES, NINE, Case, next_token
from benchmarks.child import Trial, in_child
from benchmarks.commands import app
from benchmarks.contenders import CONTENDERS
from benchmarks.max_batch import bisect, parse_bytes
from benchmarks.memory import peak
from benchmarks.models.language_model import LanguageModel
from benchmarks.models.small import mlp
from benchmarks.report import Comparison, Row, geometric_mean
from benchmarks.timing import Timing, time_case
from fxgram.cli import run

TINY = Case(partial(mlp, 5, 6, 6, 10), 4, (5,))
SENTENCES = Case(partial(LanguageModel, 11, 5, 12, 2), 3, (5,), 11, next_token)
needs_opacus = pytest.mark.skipif(not importlib.util.find_spec("opacus"), reason="needs opacus")


@pytest.mark.parametrize(
    "contender",
    [
        "SGD",
        "fxgram",
        "fxgram, recompute",
        "fxgram, diagonal",
        "TorchJD",
        pytest.param("Opacus", marks=needs_opacus),
        "vmap(grad)",
        "hand-written",
    ],
)
def test_contenders_answer_as_autograd_does(contender):
    timing = time_case(TINY, [contender], rounds=1)[contender]
    assert isinstance(timing, Timing), timing
    assert (timing.error is None) == (contender == "SGD")
    assert len(timing.rounds) == 1
    assert timing.seconds > 0


@pytest.mark.parametrize("contender", ["fxgram", pytest.param("Opacus", marks=needs_opacus)])
def test_cases_have_objectives_of_their_own(contender):
    timing = time_case(SENTENCES, [contender], rounds=1)[contender]
    assert isinstance(timing, Timing), timing


def test_all_contenders_are_tested():
    mark = test_contenders_answer_as_autograd_does.pytestmark[0]
    named = [getattr(p, "values", (p,))[0] for p in mark.args[1]]
    assert named == list(CONTENDERS)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda g, w, m: (2 * g, w), "wrong: the Gramian is off by"),
        (lambda g, w, m: (2 * g.diagonal(), w), "wrong: the squared norms are off by"),
        (lambda g, w, m: (g, 2 * w), "wrong: the gradients are off by"),
        (lambda g, w, m: m.zero_grad() or (g, w), "wrong: 1.weight has no gradient"),
    ],
)
def test_wrong_answers_are_not_timed(spoil, said, monkeypatch):
    def build(model, objective):
        run = CONTENDERS["vmap(grad)"](model, objective)
        return lambda *arguments: spoil(*run(*arguments), model)

    monkeypatch.setitem(CONTENDERS, "spoilt", build)
    assert time_case(TINY, ["spoilt"], rounds=1)["spoilt"].startswith(said)


def test_what_a_contender_does_not_serve_is_one_line():
    found = time_case(SENTENCES, ["hand-written"], rounds=1)["hand-written"]
    assert found == "failed: TypeError: written for the MLPs alone"


def test_a_child_measures_its_own_peak():
    highest, rest = in_child(peak, Trial(TINY, "fxgram", 8, threads=1))
    assert highest >= rest > 2**20


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 7, 8, 100, 1000])
def test_bisection_finds_the_largest_that_fits(largest):
    tried = []

    def why_not(size):
        tried.append(size)
        return None if size <= largest else "too large"

    low, high, reason = bisect(why_not, start=8, precision=0)
    assert low == (largest if largest >= 2 else 0)
    assert reason == "too large"
    assert high == low + 1 or not low
    assert len(tried) == len(set(tried)), "no size is tried twice"


def test_sizes_are_read_in_their_units():
    assert parse_bytes("4GiB") == 4 * 2**30
    assert parse_bytes("1.5 mb") == 1_500_000
    with pytest.raises(ValueError, match="not a size such as 4GiB"):
        parse_bytes("4 apples")


def test_ratios_leave_out_what_failed():
    rows = [
        Row(("a", "8"), {"SGD": 2.0, "b": 1.0}),
        Row(("c", "4"), {"SGD": 2.0, "b": "failed: x"}),
    ]
    assert Comparison(("model", "K"), "ms", rows).markdown().splitlines() == [
        "| model | K | SGD ms | b ms | b / SGD |",
        "|---|---:|---:|---:|---:|",
        "| a | 8 | 2 | 1 | 0.50 |",
        "| c | 4 | 2 | failed | - |",
    ]
    assert geometric_mean([2.0, None, 8.0]) == (4.0, 2)
    assert geometric_mean([None]) is None


def test_step_writes_figures_a_table_and_a_plot(tmp_path, monkeypatch, capsys):
    assert len(NINE) == 9
    monkeypatch.setitem(CASES, "mlp-narrow", TINY)
    figures, plot = tmp_path / "step.json", tmp_path / "step.svg"
    arguments = ("step", "--model", "mlp-narrow", "--rounds", 1, "--json", figures, "--plot", plot)
    monkeypatch.setattr("sys.argv", ["benchmarks", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        run(app, prog="benchmarks")
    assert not exit.value.code
    out = capsys.readouterr().out
    assert "| mlp-narrow | 4 | 5 |" in out
    assert "TorchJD / fxgram: geometric mean" in out
    assert set(json.loads(figures.read_text())["cases"]["mlp-narrow"]) == {
        *("SGD", "fxgram", "TorchJD")
    }
    assert plot.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    "arguments",
    [("step", "--model", "x"), ("memory", "--contender", "x"), ("max_batch", "--limit", "x")],
)
def test_unknown_names_are_one_line(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as exit:
        run(app, prog="benchmarks")
    assert exit.value.code == 2
    assert arguments[1] in capsys.readouterr().err
