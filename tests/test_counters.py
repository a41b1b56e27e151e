"""Counters: buffers count once a step; plain attributes change nothing in silence."""

import copy

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram

K = 4
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Buffer(nn.Module):
    """Counts in a buffer, which the result depends on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) / self.calls


class BufferAssigned(Buffer):
    def forward(self, x):
        self.calls = self.calls + 1
        return self.linear(x) / self.calls


class BufferAfter(Buffer):
    def forward(self, x):
        out = self.linear(x) / (self.calls + 1)
        self.calls.add_(1)
        return out


def squares(model, x):
    return model(x).square().sum(1)


def build(cls):
    torch.manual_seed(0)
    return cls().double()


@pytest.mark.parametrize("cls", [Buffer, BufferAssigned, BufferAfter])
@pytest.mark.parametrize("check", [True, False])
def test_buffer_counts_once_a_step(cls, check):
    model = build(cls)
    step = fxgram.compile(model, squares, check=check)
    for calls, k in enumerate((4, 3, 1, 0, 4), start=1):
        assert_agrees(step, model, squares, X[:k])
        assert model.calls == calls


class Counting(nn.Module):
    """Counts its calls in a plain attribute, which the result does not depend on."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(3, 4), 0

    def forward(self, x):
        self.calls += 1
        self.last_shape = tuple(x.shape)
        return self.linear(x)


def test_plain_attributes_see_one_forward_at_most():
    model = build(Counting)
    step = fxgram.compile(model, squares)
    for calls in range(1, 4):
        assert_agrees(step, model, squares, X)
        assert model.calls in (0, calls)


class CountingDivides(Counting):
    def forward(self, x):
        return super().forward(x) / self.calls


def test_a_plain_counter_that_changes_the_result_is_right_or_refused():
    model = build(CountingDivides)
    eager = copy.deepcopy(model)
    step = fxgram.compile(model, squares)
    for _ in range(3):
        wanted = squares(eager, X).detach()
        try:
            losses, _ = step(X)
        except fxgram.FxgramError:
            return
        torch.testing.assert_close(losses.detach(), wanted)
