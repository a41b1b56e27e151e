"""Compiling, checking and explaining leave no trace; the first step draws what eager draws."""

import copy
import random
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxgram

numpy = sys.modules.get("numpy") or pytest.importorskip("numpy")
K = 4
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Stateful(nn.Module):
    """Draws, counts, and keeps a running mean of its data."""

    def __init__(self):
        super().__init__()
        self.linear, self.note = nn.Linear(3, 4), "as it was"
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))
        self.seen = []

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.5)
        return F.dropout(self.linear(x - self.mean), 0.5, self.training) / self.calls


def squares(model, x):
    return model(x).square().sum(1)


def build(cls):
    torch.manual_seed(0)
    return cls().double()


def generators():
    """Return the states of all generators that a forward could advance."""
    state = numpy.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), state[1].tolist(), state[2]


def snapshot(model):
    return {
        "rng": generators(),
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "attributes": [
            {n: copy.copy(v) for n, v in vars(m).items() if not n.startswith("_")}
            for m in model.modules()
        ],
        "grads": [p.grad for p in model.parameters()],
        "values": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
    }


def assert_same(before, after):
    assert before["rng"] == after["rng"]
    assert before["attributes"] == after["attributes"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)
    for old, new, value in zip(before["grads"], after["grads"], before["values"], strict=True):
        assert old is new
        assert value is None or torch.equal(old, value)


@pytest.mark.parametrize("with_grad", [True, False])
def test_compiling_ahead_changes_nothing(with_grad):
    model = build(Stateful)
    if with_grad:
        model.linear.weight.grad = torch.ones(4, 3, dtype=torch.float64)
    objects = [*model.parameters(), *model.buffers()]
    before = snapshot(model)
    fxgram.compile(model, squares, example=(X,), check=True)
    assert_same(before, snapshot(model))
    assert all(
        a is b for a, b in zip(objects, [*model.parameters(), *model.buffers()], strict=True)
    )


def test_looking_changes_nothing():
    model = build(Stateful)
    step = fxgram.compile(model, squares)
    step(X)
    before = snapshot(model)
    for look in (step.explain(), step.passes, step.uses, step):
        str(look)
    assert_same(before, snapshot(model))


def test_a_refused_program_changes_nothing():
    model = build(Stateful)
    before = snapshot(model)
    with pytest.raises(fxgram.FxgramError):
        fxgram.compile(model, lambda m, x: (y := squares(m, x)) * y.flip(0))(X)
    assert_same(before, snapshot(model))


def test_an_error_of_the_user_changes_nothing():
    def broken(model, x):
        model(x)
        model.note = "changed"
        model.extra = 1
        raise ValueError("mine")

    model = build(Stateful)
    before = snapshot(model)
    with pytest.raises(fxgram.CaptureError):
        fxgram.compile(model, broken)(X)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("check", [True, False])
def test_a_step_leaves_what_an_eager_step_leaves(check):
    model = build(Stateful)
    eager = copy.deepcopy(model)
    step = fxgram.compile(model, squares, check=check)
    for seed in range(3):
        torch.manual_seed(seed)
        squares(eager, X)
        wanted = snapshot(eager)
        torch.manual_seed(seed)
        step(X)
        assert_same(wanted, snapshot(model))
        assert model.calls == seed + 1


def test_hooks_on_parameters_do_not_run_in_the_check():
    model, calls = build(Stateful), []
    weight, bias = model.linear.weight, model.linear.bias
    weight.register_hook(lambda grad: calls.append("hook"))
    bias.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    losses, _ = fxgram.compile(model, squares)(X)
    assert calls == []
    losses.sum().backward()
    assert sorted(calls) == ["accumulated", "hook"]
