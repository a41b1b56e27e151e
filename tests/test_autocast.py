"""Autocast blocks, ambient autocast and half-precision models, against a float64 oracle.

The gradients are those of the eager model under the same autocast, to float32's rounding.
"""

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from oracle import assert_close_relative, assert_gramian_close, gradient_of, jacobian, trainable
from torch import nn

import fxgram

D, HALF = 8, {torch.bfloat16: 6e-2, torch.float16: 1e-2}


def channels(norm):
    """Let a norm over channels see vectors as two channels of four."""
    return nn.Sequential(nn.Unflatten(1, (2, 4)), norm, nn.Flatten(1))


NORMS = {
    "none": nn.Identity,
    "layer": lambda: nn.LayerNorm(D),
    "rms": lambda: nn.RMSNorm(D),
    "group": lambda: channels(nn.GroupNorm(2, 2)),
    "instance": lambda: channels(nn.InstanceNorm1d(2, affine=True)),
    "batch": lambda: nn.BatchNorm1d(D).eval(),
}


class Tower(nn.Module):
    """Linear layers around a norm, which takes float32 at least if `wide_norm` is set."""

    def __init__(self, norm, wide_norm=False):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, D), norm(), nn.Linear(D, 2)
        self.hidden, self.wide_norm = nn.Linear(D, D, bias=False), wide_norm

    def forward(self, x):
        h = self.first(x)
        if self.wide_norm:
            h = self.norm(h.to(torch.promote_types(h.dtype, torch.float32))).to(h.dtype)
        else:
            h = self.norm(h)
        return self.last(torch.tanh(self.hidden(h)) + h)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.norm(self.conv(x)).relu().mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(11, D), nn.Linear(D, 2)
        self.layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, ids):
        return self.last(self.layer(self.words(ids)).mean(1))


def vectors(k):
    return torch.randn(k, 6)


MODELS = {
    **{name: (lambda norm=norm: Tower(norm), vectors) for name, norm in NORMS.items()},
    "images": (Images, lambda k: torch.randn(k, 3, 6, 6)),
    "words": (Words, lambda k: torch.randint(11, (k, 5))),
}
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def build(name):
    torch.manual_seed(0)
    return MODELS[name][0]()


def squares(model, x):
    return model(x).float().square().sum(1)


def block(dtype):
    def objective(model, x):
        with torch.autocast("cpu", dtype):
            y = model(x)
        return y.float().square().sum(1)

    return objective


def assert_close_to_wide(step, model, objective, x, rtol, around=nullcontext):
    """Compare with the model in float64 to `rtol`, and gradients with the same model in eager."""
    exact, wide = deepcopy(model).double(), x.double() if x.is_floating_point() else x
    rows = jacobian(exact(wide).square().sum(1), trainable(exact).values())
    with around():
        expected = objective(model, x)
        losses, gramian = step(x)
    weights = torch.linspace(-1, 2, len(x))
    assert_close_relative(losses.detach(), expected.detach(), 1e-3, "losses")
    assert gramian.dtype == torch.float32
    assert torch.equal(gramian, gramian.T)
    error = (gramian - rows @ rows.T).abs().max() / (rows @ rows.T).abs().max()
    assert error <= rtol, f"gramian: off by {error:.2g}"
    gradients = gradient_of(expected, trainable(model), weights)
    losses.backward(weights)
    scale = max(float(g.abs().max()) for g in gradients.values())
    for name, p in trainable(model).items():
        assert p.grad.dtype == p.dtype
        assert float((p.grad - gradients[name]).abs().max()) <= 1e-2 * scale, name
    model.zero_grad()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_block_inside_of_the_objective(name, dtype):
    model, draw = build(name), MODELS[name][1]
    step = fxgram.compile(model, block(dtype))
    for k in (8, 1, 3):
        assert_close_to_wide(step, model, block(dtype), draw(k), HALF[dtype])


@pytest.mark.parametrize("name", MODELS)
def test_ambient_autocast_and_none_on_one_step(name):
    model, draw = build(name), MODELS[name][1]
    step = fxgram.compile(model, squares)
    for k in (3, 1, 8):
        x = draw(k)
        assert_close_to_wide(step, model, squares, x, 1e-4)
        for dtype, rtol in HALF.items():
            around = lambda dtype=dtype: torch.autocast("cpu", dtype)  # noqa: E731
            assert_close_to_wide(step, model, squares, x, rtol, around)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_whole_model_in_half_precision(name, dtype):
    model, draw = build(name).to(dtype), MODELS[name][1]
    step = fxgram.compile(model, squares)
    for k in (3, 1, 8):
        x = draw(k)
        x = x.to(dtype) if x.is_floating_point() else x
        assert_close_to_wide(step, model, squares, x, HALF[dtype])


@pytest.mark.parametrize("name", NORMS)
def test_half_trunk_with_wide_norms(name):
    torch.manual_seed(0)
    model = Tower(NORMS[name], wide_norm=True).to(torch.bfloat16)
    model.norm.float()
    step = fxgram.compile(model, squares)
    for k in (3, 1, 8):
        assert_close_to_wide(step, model, squares, vectors(k).bfloat16(), HALF[torch.bfloat16])


class Mixed(nn.Module):
    """Layers of several dtypes, each of which casts what it is given."""

    def __init__(self, *dtypes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6).to(dtype) for dtype in dtypes)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).tanh()
        return x


MIXED = [
    ((torch.float32, torch.float64, torch.float32), 1e-4),
    ((torch.float64, torch.bfloat16, torch.float32), HALF[torch.bfloat16]),
    ((torch.float16, torch.float16, torch.float32), HALF[torch.float16]),
]


@pytest.mark.parametrize(("dtypes", "rtol"), MIXED)
def test_layers_of_several_dtypes(dtypes, rtol):
    torch.manual_seed(0)
    model = Mixed(*dtypes)
    step = fxgram.compile(model, squares)
    for k in (3, 1, 8):
        assert_close_to_wide(step, model, squares, vectors(k), rtol)


def test_backward_inside_of_a_block():
    model, x = build("layer"), vectors(4)
    losses, _ = fxgram.compile(model, squares)(x)
    expected = gradient_of(squares(model, x), trainable(model), torch.ones(4))
    with torch.autocast("cpu", torch.bfloat16):
        losses.sum().backward()
    for name, p in trainable(model).items():
        torch.testing.assert_close(p.grad, expected[name])


def test_disabled_block_inside_of_a_block():
    def objective(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = model.first(x)
            with torch.autocast("cpu", enabled=False):
                h = model.norm(h.float())
                y = model.last(torch.tanh(model.hidden(h)) + h)
        assert y.dtype == torch.float32
        return y.square().sum(1)

    model = build("layer")
    step = fxgram.compile(model, objective)
    assert_close_to_wide(step, model, objective, vectors(4), HALF[torch.bfloat16])


def test_cross_terms_under_autocast():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)

    def objective(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(model(x).sin()).float().square().sum(1)

    x = torch.randn(5, 4)
    _, gramian = fxgram.compile(model, objective, cross_terms=True)(x)
    exact = deepcopy(model).double()
    losses = exact(exact(x.double()).sin()).square().sum(1)
    rows = jacobian(losses, exact.parameters())
    assert_gramian_close(gramian.double(), rows @ rows.T, HALF[torch.bfloat16])


def test_custom_function_sees_the_block():
    class Wide(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("cpu")
            return x.sin()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            return 2 * grad

    def objective(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return Wide.apply(model(x)).square().sum(1)

    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    losses, _ = fxgram.compile(model, objective)(x)
    expected = gradient_of(objective(model, x), trainable(model), torch.ones(5))
    losses.sum().backward()
    torch.testing.assert_close(model.weight.grad, expected["weight"], rtol=1e-2, atol=1e-2)


def test_coupled_samples_are_found_under_autocast():
    model = nn.Sequential(nn.Linear(6, D), nn.Linear(D, 2))
    step = fxgram.compile(model, lambda m, x: (m(x) - 0.1 * m(x).roll(1, 0)).square().sum(1))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(fxgram.CoupledSamples):
        step(vectors(4))
