"""`step.memory` against torch's profiler, `memory_budget`, and `retain`."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees
from allocated import peak_bytes, set_gradients
from torch import nn

import fxgram

MB = 10**6


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


def alexnet():
    """Convolutions before linear layers that hold most of the parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 96, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten(),
        nn.Linear(128 * 16, 2048), nn.ReLU(), nn.Dropout(), nn.Linear(2048, 100),
    )  # fmt: skip


def transformer():
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def convolutions():
    """Few channels on large images: per-sample gradients are small, and kept."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.AvgPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


CASES = {
    "alexnet-96": (alexnet, (96, 3, 96, 96)),
    "alexnet-160": (alexnet, (160, 3, 96, 96)),
    "transformer": (transformer, (256, 48, 64)),
    "convolutions": (convolutions, (44, 3, 80, 80)),
}


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    return {name: (build(), torch.randn(shape)) for name, (build, shape) in CASES.items()}


@pytest.mark.parametrize("retain", ["cotangents", "recompute", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_prediction_is_what_the_profiler_measures(case, retain, models):
    model, x = models[case]
    step = fxgram.compile(model, squares, check=False, retain=retain)
    weights = torch.ones(len(x))
    for present in (False, True):
        set_gradients(model, present)
        predicted = step.memory(x)
        measured = peak_bytes(lambda: step(x)[0].backward(weights))
        assert measured > 100 * MB, "too small to say much"
        assert abs(predicted.peak - measured) <= 0.15 * measured, (predicted, measured)
    set_gradients(model, False)


def test_prediction_leaves_everything_as_it_was():
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3))
    model.register_buffer("seen", torch.zeros(2))
    model[0].weight.grad = torch.ones_like(model[0].weight)
    step = fxgram.compile(model, squares)
    before, drawn = deepcopy(model.state_dict()), torch.get_rng_state()
    first, second = step.memory(torch.ones(5, 4)), step.memory(torch.ones(50, 4))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert second.peak > first.peak > 0
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[2].weight.grad is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_prediction_prints_its_figures():
    text = str(fxgram.compile(nn.Linear(4, 3), squares).memory(torch.randn(5, 4)))
    assert [line.split()[-1] for line in text.splitlines()] == ["MiB"] * 4
    with pytest.raises(fxgram.InvalidBatch, match="without samples"):
        fxgram.compile(nn.Linear(4, 3), squares).memory(torch.randn(0, 4))


def linears():
    layers = [m for _ in range(2) for m in (nn.Linear(128, 128), nn.LayerNorm(128), nn.Tanh())]
    return nn.Sequential(*layers), torch.randn(64, 64, 128)


@pytest.mark.parametrize("case", ["linears", "convolutions"])
def test_budgets_are_kept(case, models):
    model, x = linears() if case == "linears" else models[case]
    set_gradients(model, False)
    ordinary = peak_bytes(lambda: squares(model, x).sum().backward())
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    scale = max(gradient.abs().max() for gradient in expected.values())
    with pytest.raises(fxgram.InvalidArgument, match="budget=1 bytes is too small") as raised:
        fxgram.compile(model, squares, check=False, memory_budget=1).memory(x)
    least = int(str(raised.value).split("needs ")[1].split()[0])
    for budget in (least, 2 * least, 8 * least):
        set_gradients(model, False)
        step = fxgram.compile(model, squares, check=False, memory_budget=budget)
        step.memory(x)
        taken = peak_bytes(lambda step=step: step(x)[0].sum().backward())
        assert taken <= ordinary + budget, (taken - ordinary, budget)
        for name, p in model.named_parameters():
            assert (p.grad - expected[name]).abs().max() <= 1e-3 * scale, name
    set_gradients(model, False)


def small():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(96, 40), nn.Tanh(), nn.Linear(40, 3)
    ).double()


@pytest.mark.parametrize("budget", [None, "60 kB", 100_000, "1MiB", "2GiB"])
@pytest.mark.parametrize("retain", ["auto", "recompute"])
def test_answers_do_not_depend_on_the_budget(budget, retain):
    model = small()
    step = fxgram.compile(model, squares, memory_budget=budget, retain=retain)
    assert_agrees(step, model, squares, torch.randn(7, 2, 6, 6, dtype=torch.float64))


@pytest.mark.parametrize("budget", ["2 apples", "GiB", "1 Mib", -1, 0, True, 1.5])
def test_budgets_that_are_none(budget):
    with pytest.raises(fxgram.InvalidArgument, match="memory_budget="):
        fxgram.compile(small(), squares, memory_budget=budget)


def test_recompute_keeps_what_autograd_keeps():
    layers = [m for _ in range(4) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model, x = nn.Sequential(*layers), torch.randn(48, 20, 64)
    kept = {}
    for retain in ("cotangents", "recompute"):
        kept[retain] = fxgram.compile(model, squares, check=False, retain=retain).memory(x).kept
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), x]}
    saved = {}

    def pack(value):
        storage = value.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        losses = squares(model, x)
    by_autograd = sum(size for at, size in saved.items() if at not in own)
    assert kept["recompute"] < kept["cotangents"]
    assert kept["recompute"] <= 1.05 * by_autograd + losses.nbytes + 48 * 48 * 4


def test_auto_switches_as_the_batch_grows():
    """Cotangents of six layers grow with the batch, the budget doesn't."""
    layers = [m for _ in range(6) for m in (nn.Linear(128, 128), nn.Tanh())]
    step = fxgram.compile(nn.Sequential(*layers), squares, check=False, memory_budget="16 MB")
    modes = []
    for k in (4, 128):
        step.memory(torch.randn(k, 64, 128))
        modes.append("second backward" in str(step.explain()))
    assert modes == [False, True]


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.layer(self.scale * self.layer(x).tanh())


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(Straight.apply(self.first(x)))


class Distances(nn.Module):
    """`prelu` and `cdist` of learned points and scales."""

    def __init__(self):
        super().__init__()
        self.points, self.slope = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.rand(6))

    def forward(self, x):
        return F.prelu(
            torch.cdist(x[:, None], self.points[None].expand(len(x), -1, -1))[:, 0] - 1, self.slope
        )


def two_losses(model, x):
    out = model(x)
    return torch.stack([out.square().sum(1), out.sin().sum(1)], 1)


def contrastive(model, x):
    out = model(x)
    return F.cross_entropy(out @ out.T, torch.arange(len(x)), reduction="none")


MODELS = {
    "[K, T]": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), two_losses, {}),
    "coupled": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh()),
        contrastive, {"batch_dim": None}),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
                   squares,
                   {"batch_dim": None}),
    "cross terms": (Reused, squares, {"cross_terms": True}),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 9), nn.Dropout(), nn.Linear(9, 2)), squares, {}),
    "function": (Rounded, squares, {}),
    "fallback": (Distances, squares, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_second_backward_is_right(case):
    build, objective, options = MODELS[case]
    torch.manual_seed(0)
    model = build().double()
    step = fxgram.compile(model, objective, retain="recompute", **options)
    assert_agrees(step, model, objective, torch.randn(6, 4, dtype=torch.float64))
    step.memory(torch.randn(6, 4, dtype=torch.float64))


def test_second_backward_of_reused_weights():
    torch.manual_seed(0)
    model, x = Reused().double(), torch.randn(6, 4, dtype=torch.float64)
    weights = torch.linspace(-1, 2, 6, dtype=torch.float64)
    expected = torch.autograd.grad(squares(model, x), list(model.parameters()), weights)
    losses, gramian = fxgram.compile(model, squares, retain="recompute")(x)
    losses.backward(weights)
    other = fxgram.compile(model, squares, retain="cotangents")(x)[1]
    torch.testing.assert_close(gramian, other)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)
