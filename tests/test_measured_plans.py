"""`plan="measure"`: choices follow timings, which are kept on disk; no test reads a real clock."""

import json
import logging
import multiprocessing

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram
from fxgram.planning import measure, timings
from fxgram.planning.costs import choice_name
from passes import Choice

K = 6
CPU = torch.device("cpu")


class Model(nn.Module):
    """A convolution, a table, and a linear layer with positions: many ways to contract each."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.convolution = nn.Conv1d(4, 8, 3, padding=1)
        self.linear = nn.Linear(8, 16)

    def forward(self, ids):
        rows = self.convolution(self.table(ids).mT).tanh().mT
        return self.linear(rows)


def squares(model, ids):
    return model(ids).square().mean((1, 2))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep timings in a folder of the test."""
    monkeypatch.setenv("FXGRAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def timed(monkeypatch):
    """Let pairs be fastest, and count what is timed; every way still runs once."""
    calls = []

    def time_all(runs, device):
        for run in runs.values():
            run()
        calls.append(list(runs))
        seconds = {"pairs": 1.0, "weighted": 0.0}
        return {name: seconds.get(name.split(" ")[0], 9.0) for name in runs}

    monkeypatch.setattr(measure, "time_all", time_all)
    monkeypatch.setattr(measure, "WITHIN", 1e9)
    monkeypatch.setattr(measure, "MOST", 100)
    return calls


def all_alike(runs, device):
    return {name: 0.0 if name == "weighted gradient" else 1.0 for name in runs}


def pairs_last(runs, device):
    return {name: 9.0 if name.startswith("pairs") else 1.0 for name in runs}


def ids(k=K):
    return torch.randint(11, (k, 9), generator=torch.Generator().manual_seed(0))


def compiled(plan="measure", model=None, **options):
    torch.manual_seed(0)
    return fxgram.compile((model or Model()).double(), squares, plan=plan, **options).prepare(ids())


def contractions(step):
    return {row.parameter: row.contraction.split(" ")[0].strip(",") for row in step.uses}


def test_fastest_is_taken_and_the_answer_stays(timed):
    step = compiled()
    found = contractions(step)
    weights = ("table.weight", "convolution.weight", "linear.weight")
    assert [found[name] for name in weights] == ["pairs"] * 3
    assert_agrees(step, step._objective.model, squares, ids())
    assert step.explain().measured
    assert "measured" in str(step)


def test_ties_are_decided_by_the_cost_model(timed, monkeypatch):
    monkeypatch.setattr(measure, "time_all", all_alike)
    measured, modelled = compiled(), compiled("cost")
    assert [r.contraction for r in measured.uses] == [r.contraction for r in modelled.uses]


def test_timings_are_used_again(timed, cache):
    first = compiled()
    assert timed
    count = len(timed)
    again = compiled()
    assert len(timed) == count
    assert contractions(first) == contractions(again)
    assert [file.suffix for file in sorted(cache.iterdir())] == [".json", ".lock"]


def test_file_is_readable(timed):
    compiled()
    path = timings.cache_file(CPU)
    content = json.loads(path.read_text())
    (linear,) = [use for use in content["seconds"] if use.startswith("linear kso,ksi->oi")]
    assert f"K={K} S=9 O=16 I=8 float64" in linear
    assert {"gradients", "gradients, kept"} <= set(content["seconds"][linear])
    assert any(name.startswith("pairs") for name in content["seconds"][linear])
    assert torch.__version__ in path.name
    assert f"{torch.get_num_threads()}-thread" in path.name


def test_another_size_is_timed_anew(timed):
    step = compiled()
    count = len(timed)
    step(ids(2 * K))
    assert len(timed) > count


def test_what_is_on_disk_decides(timed, monkeypatch):
    """A plan stays as it was measured, whatever the clock would say today."""
    compiled()
    monkeypatch.setattr(measure, "time_all", pairs_last)
    assert contractions(compiled())["linear.weight"] == "pairs"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"format": 0, "seconds": {}}', '{"format": 1, "seconds": {"a": 3}}', "\xff"],
)
def test_unusable_file_is_ignored(timed, text, caplog):
    path = timings.cache_file(CPU)
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING, "fxgram"):
        step = compiled()
    assert "ignored the measured plans in" in caplog.text
    assert contractions(step)["linear.weight"] == "pairs"
    assert timings.read(path)


def test_folder_that_cannot_be_written(timed, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FXGRAM_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "fxgram"):
        step = compiled()
    count = len(timed)
    assert "cannot keep measured plans" in caplog.text
    assert contractions(step)["linear.weight"] == "pairs"
    assert len(timed) == count, "explain() measured again"


def test_deterministic_algorithms_rule_measuring_out(timed):
    torch.use_deterministic_algorithms(True)
    try:
        step = compiled()
        assert not step.explain().measured
    finally:
        torch.use_deterministic_algorithms(False)
    assert not timed
    assert step.explain().measured


def test_nothing_is_left_behind(timed):
    """RNG, buffers and `.grad` are as they were."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))
    x = torch.randn(K, 3)
    step = fxgram.compile(model, lambda m, x: m(x).square().sum(1), plan="measure")
    step.prepare(x)
    state, grads = torch.get_rng_state(), [p.grad for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    step.prepare(torch.randn(2 * K, 3, generator=torch.Generator().manual_seed(1)))
    step._used().plan(2 * K)
    assert torch.equal(state, torch.get_rng_state())
    assert grads == [p.grad for p in model.parameters()] == [None] * len(grads)
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))


def test_one_line_says_what_was_measured(timed, caplog):
    with caplog.at_level(logging.INFO, "fxgram"):
        compiled()
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("measured")]
    candidates = sum(name != "weighted gradient" for names in timed for name in names)
    assert f"measured {candidates} candidates" in line
    assert str(timings.cache_file(CPU)) in line


def test_budget_holds_for_measured_plans(timed, monkeypatch):
    """What does not fit is no candidate, however fast it is."""
    small = compiled(memory_budget=20_000)
    held = max(row.held for row in small.explain().rows)
    assert held <= 20_000
    assert compiled(memory_budget="1GB").explain().held > 20_000


def test_real_timings_give_the_right_answer():
    step = compiled()
    assert_agrees(step, step._objective.model, squares, ids())
    path = timings.cache_file(CPU)
    assert all(s > 0 for of in timings.read(path).values() for s in of.values())


def test_first_figure_stays(tmp_path):
    path = tmp_path / "a.json"
    timings.add(path, {"use": {"pairs": 1.0}})
    found = timings.add(path, {"use": {"pairs": 2.0, "gradients": 3.0}, "other": {"pairs": 4.0}})
    assert found == {"use": {"pairs": 1.0, "gradients": 3.0}, "other": {"pairs": 4.0}}
    assert timings.read(path) == found


def test_figures_of_another_process_hold(timed):
    """Two measured at once: the second plans again with what the first one wrote."""
    step = fxgram.compile(Model().double(), squares, plan="measure", check=False)
    real = timings.add

    def late(path, seconds):
        real(path, {use: {name: 9.0 if name.startswith("pairs") else 1.0 for name in of}
                    for use, of in seconds.items()})  # fmt: skip
        return real(path, seconds)

    timings.add = late
    try:
        step.prepare(ids())
        found = contractions(step)
    finally:
        timings.add = real
    assert found["linear.weight"] == "gradients"
    assert found == contractions(compiled())


def _write(path, name):
    for at in range(20):
        timings.add(path, {f"{name} {at}": {"pairs": float(at)}})


def test_two_processes_write_at_once(tmp_path):
    path, context = tmp_path / "a.json", multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(path, name)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(timings.read(path)) == 40


def test_names_of_choices_differ():
    names = [choice_name(c) for c in _choices()]
    assert len(set(names)) == len(names)


def _choices():
    for contraction in ("pairs", "gradients"):
        for parts in (1, 2):
            yield Choice(contraction, parts=parts)
    for kernel in ("factors", "calls", "groups"):
        yield Choice("gradients", kernel, keep=True)
