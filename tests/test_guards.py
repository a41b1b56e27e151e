"""Plain Python values that the forward reads are guarded: a changed one compiles anew."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram

K = 4
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
RATE = 1.0


class Configured(nn.Module):
    """Reads plain values of many kinds."""

    def __init__(self):
        super().__init__()
        self.linear, self.child = nn.Linear(3, 2), nn.Identity()
        self.number, self.flag, self.word = 1.0, True, "sin"
        self.child.scale = 1.0
        self.items, self.table = [1.0, 2.0], {"scale": 1.0}
        self.config, self.function = SimpleNamespace(scale=1.0), torch.sin

    def forward(self, x):
        y = self.linear(x) * self.number * self.child.scale * self.items[1]
        y = y * self.table["scale"] * self.config.scale
        y = getattr(torch, self.word)(y) + self.function(y)
        return y if self.flag else -2 * y


def squares(model, x):
    return (model(x) + 1).square().sum(1)


def _set(name, value):
    return lambda model: setattr(model, name, value)


CHANGES = {
    "number": _set("number", 3.0),
    "type": _set("number", 2),
    "flag": _set("flag", False),
    "word": _set("word", "cos"),
    "child": lambda model: setattr(model.child, "scale", 3.0),
    "item": lambda model: model.items.__setitem__(1, 5.0),
    "table": lambda model: model.table.update(scale=3.0),
    "config": lambda model: setattr(model.config, "scale", 3.0),
    "function": _set("function", torch.cos),
}


@pytest.mark.parametrize("name", CHANGES)
def test_attributes_of_modules(name):
    torch.manual_seed(0)
    model = Configured().double()
    step = fxgram.compile(model, squares)
    assert_agrees(step, model, squares, X)
    CHANGES[name](model)
    assert_agrees(step, model, squares, X)


def test_what_the_objective_closes_over():
    number, items, table, config = 1.0, [1.0], {"a": 1.0}, SimpleNamespace(a=1.0)

    def inner(losses):
        return losses * number

    def objective(model, x):
        return inner(squares(model, x)) * items[0] * table["a"] * config.a

    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X)
    number = 2.0
    assert_agrees(step, model, objective, X)
    items[0] = 3.0
    assert_agrees(step, model, objective, X)
    table["a"] = 4.0
    assert_agrees(step, model, objective, X)
    config.a = 5.0
    assert_agrees(step, model, objective, X)


class Objective:
    """An objective with a value of its own."""

    rate = 1.0

    def __call__(self, model, x):
        return squares(model, x) * self.rate

    def losses(self, model, x):
        return squares(model, x) * self.rate


@pytest.mark.parametrize("kind", ["object", "method", "partial"])
def test_values_of_objective_objects(kind):
    holder = Objective()
    if kind == "partial":
        objective = partial(lambda model, x, rate: squares(model, x) * rate, rate=1.0)
    else:
        objective = holder if kind == "object" else holder.losses
    model = nn.Linear(3, 2).double()
    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X)
    holder.rate = 3.0
    if kind == "partial":
        objective.keywords["rate"] = 3.0
    assert_agrees(step, model, objective, X)


def test_named_globals(monkeypatch):
    def objective(model, x):
        return squares(model, x) * RATE

    model = nn.Linear(3, 2).double()
    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X)
    monkeypatch.setattr(f"{__name__}.RATE", 3.0)
    assert_agrees(step, model, objective, X)


def test_defaults():
    def objective(model, x, rate=1.0, *, shift=0.0):
        return (model(x) + shift).square().sum(1) * rate

    model = nn.Linear(3, 2).double()
    step = fxgram.compile(model, objective)
    assert_agrees(step, model, objective, X)
    objective.__defaults__ = (3.0,)
    assert_agrees(step, model, objective, X)
    objective.__kwdefaults__["shift"] = 1.0
    assert_agrees(step, model, objective, X)


def test_unchanged_values_compile_nothing(monkeypatch):
    torch.manual_seed(0)
    model = Configured().double()
    step = fxgram.compile(model, squares)
    step(X)
    monkeypatch.setattr("fxgram.compilation.capture", None)
    assert_agrees(step, model, squares, X)
    model.number, model.items = 1.0, [1.0, 2.0]
    assert_agrees(step, model, squares, X)
