"""What a step keeps for its backward: through `save_for_backward`, freed part by part."""

import pytest
import torch
from live_bytes import LiveBytes
from oracle import assert_gradients_close, gradient, trainable
from torch import nn

import fxgram

K, RTOL = 5, 1e-9
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
W = torch.linspace(-1, 2, K, dtype=torch.float64)


class Model(nn.Module):
    """Two layers, and a third that no loss reaches."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh())


def squares(model, x):
    return model(x).square().sum(1)


@pytest.fixture(scope="module")
def compiled():
    torch.manual_seed(0)
    model = Model().double()
    return model, fxgram.compile(model, squares, example=(X,))


@pytest.fixture
def pair(compiled):
    """Give the shared model and step, `.grad` None."""
    compiled[0].zero_grad(set_to_none=True)
    return compiled


def grads(model):
    return {name: p.grad for name, p in trainable(model).items()}


def expected(model, weights=W, x=X):
    return gradient(model, squares, (x,), weights)


def test_saved_tensor_hooks_see_everything_kept(pair):
    model, step = pair
    x = torch.randn(32, 3, dtype=torch.float64)
    packed = []
    step(x)  # compiles for this size

    def pack(tensor):
        packed.append(tensor.nbytes)
        return tensor.numpy(force=True).copy()

    with LiveBytes() as live, torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        losses, gramian = step(x)
    assert sum(packed) >= 32 * 4 * 8
    assert live.count() <= losses.nbytes + gramian.nbytes, "kept something that no hook saw"
    weights = torch.linspace(-1, 2, 32, dtype=torch.float64)
    losses.backward(weights)
    assert_gradients_close(grads(model), expected(model, weights, x), RTOL)


def test_backward_frees_what_was_kept(pair):
    model, step = pair
    x = torch.randn(32, 3, dtype=torch.float64)
    step(x)
    with LiveBytes() as live:
        losses, gramian = step(x)
        own = losses.nbytes + gramian.nbytes
        assert live.count() > own
        losses.backward(torch.ones(32, dtype=torch.float64))
    reached = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert live.count() <= own + reached


def test_gradients_arrive_one_by_one():
    width, layers = 512, 4  # a megabyte each
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    step, alive = fxgram.compile(model, squares), []
    losses, _ = step(torch.randn(2, width))

    def drop(param):
        alive.append(live.count())
        param.grad = None

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(drop)
    with LiveBytes() as live:
        losses.backward(torch.ones(2))
    assert len(alive) == 2 * layers
    assert max(alive) < 3 * width * width * 4, "gradients of several layers were alive at once"


def test_nothing_is_kept_without_a_backward(pair):
    _, step = pair
    x = torch.randn(32, 3, dtype=torch.float64)
    step(x)
    with LiveBytes() as live:
        losses, gramian = step(x)
        losses = losses.detach()
    assert live.count() <= losses.nbytes + gramian.nbytes


def test_kept_activations_are_freed_on_the_way():
    """At the last gradient, nothing kept for the others is left."""
    width, layers, k = 512, 6, 64
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())])
    step, alive = fxgram.compile(model, squares, retain="cotangents"), []
    x = torch.randn(k, width)
    step(x)

    def drop(param):
        alive.append(live.count())
        param.grad = None

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(drop)
    with LiveBytes() as live:
        losses, gramian = step(x)
        del gramian
        before = live.count()
        losses.sum().backward()
    assert before >= (2 * layers - 1) * k * width * 4
    assert alive[-1] < before / 2, "activations of used layers were kept to the end"
