"""One program serves every batch size from two up; 1 costs one more capture, 0 none."""

import logging

import pytest
import torch
from agreement import assert_agrees
from oracle import assert_gradients_close, gradient, trainable
from torch import nn

import fxgram
from fxgram.capture import capture


class Attention(nn.Module):
    """Any sequence length; a reshape that folds the batch into positions."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.mix(x, x, x, need_weights=False)[0]
        return self.head(x.reshape(-1, 4)).view(*ids.shape, 3)


class Convolution(nn.Module):
    """Uses the number of samples in the forward, as a size and as a number."""

    def __init__(self):
        super().__init__()
        self.conv, self.token = nn.Conv2d(1, 2, 2), nn.Parameter(torch.randn(1, 2))
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        hidden = self.conv(x).relu().mean((2, 3)) + self.token.expand(len(x), -1)
        return self.head(hidden) * (1 + 1 / (len(x) + 1))


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 2))


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


KINDS = {
    "mlp": (mlp, lambda k: normal(k, 3)),
    "attention": (Attention, lambda k: torch.randint(7, (k, 5))),
    "convolution": (Convolution, lambda k: normal(k, 1, 4, 4)),
}


@pytest.fixture(params=KINDS)
def kind(request):
    """Give a model and a function from a batch size to its input."""
    build, draw = KINDS[request.param]
    torch.manual_seed(0)
    return build().double(), draw


@pytest.fixture
def captures(monkeypatch):
    """Give the list of the batch sizes that were captured."""
    sizes = []

    def spy(objective, batch, **options):
        sizes.append(batch.size)
        return capture(objective, batch, **options)

    monkeypatch.setattr("fxgram.compilation.capture", spy)
    return sizes


def test_sizes_from_two_up_share_one_program(kind, captures):
    model, draw = kind
    step = fxgram.compile(model, squares)
    for k in (5, 3, 2, 7, 32):
        assert_agrees(step, model, squares, draw(k))
    assert captures == [5]


def test_one_sample_and_none(kind, captures):
    model, draw = kind
    step = fxgram.compile(model, squares)
    for k in (3, 1, 0, 1, 4, 0):
        assert_agrees(step, model, squares, draw(k))
    assert captures == [3, 1]


def test_first_batch_of_one(kind, captures):
    model, draw = kind
    step = fxgram.compile(model, squares)
    for k in (1, 4, 1, 2):
        assert_agrees(step, model, squares, draw(k))
    assert captures == [1, 4]


def test_first_batch_of_two(kind, captures):
    model, draw = kind
    step = fxgram.compile(model, squares)
    for k in (2, 3):
        assert_agrees(step, model, squares, draw(k))
    assert captures == [2]


@pytest.mark.parametrize("k", [3, 4, 5, 2])
def test_size_equal_to_other_dims(k, captures):
    """As many samples as inputs, as hidden units, as positions, as classes."""
    torch.manual_seed(0)
    model = Attention().double()
    step = fxgram.compile(model, squares)
    assert_agrees(step, model, squares, torch.randint(7, (k, 5)))
    assert_agrees(step, model, squares, torch.randint(7, (k + 4, 5)))
    assert captures == [k]


def test_nothing_is_captured_for_an_empty_batch(kind, captures):
    model, draw = kind
    losses, gramian = fxgram.compile(model, squares)(draw(0))
    assert captures == []
    assert losses.shape == (0,)
    assert gramian.shape == (0, 0)
    assert gramian.grad_fn is None
    weights = torch.zeros(0, dtype=torch.float64)
    wanted = gradient(model, squares, (draw(0),), weights)
    losses.backward(weights)
    actual = {name: p.grad for name, p in trainable(model).items()}
    assert_gradients_close(actual, wanted, 1e-9)
    assert all(not grad.any() for grad in actual.values())


def test_an_empty_batch_after_others_behaves_alike(captures):
    torch.manual_seed(0)
    model = mlp().double()
    step = fxgram.compile(model, squares)
    step(normal(3, 3))
    losses, gramian = step(normal(0, 3))
    losses.sum().backward()
    assert (losses.shape, gramian.shape) == ((0,), (0, 0))
    assert all(not p.grad.any() for p in model.parameters())
    with torch.no_grad():
        assert not step(normal(0, 3))[0].requires_grad


def test_another_sequence_length_is_cached(captures):
    torch.manual_seed(0)
    model = Attention().double()
    step = fxgram.compile(model, squares)
    for k, length in ((3, 5), (3, 6), (4, 5), (2, 6), (2, 4), (7, 5)):
        assert_agrees(step, model, squares, torch.randint(7, (k, length)))
    assert captures == [3, 3, 2]


def test_another_dtype_of_the_input_is_cached(captures):
    torch.manual_seed(0)
    model = Attention().double()
    step = fxgram.compile(model, squares)
    for dtype in (torch.int64, torch.int32, torch.int64):
        assert_agrees(step, model, squares, torch.randint(7, (3, 5)).to(dtype))
    assert captures == [3, 3]


def test_each_capture_is_logged(caplog):
    step = fxgram.compile(mlp().double(), squares)
    with caplog.at_level(logging.INFO, logger="fxgram"):
        for k in (3, 4, 1):
            step(normal(k, 3))
    lines = [r.getMessage() for r in caplog.records if "compiling" in r.getMessage()]
    assert len(lines) == 2
    assert "Sequential" in lines[0]
