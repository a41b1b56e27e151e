"""`losses.backward(weights)` keeps autograd's contract, without a second backward pass."""

import pytest
import torch
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


def test_no_graph_behind_the_gramian(pair):
    _, step = pair
    losses, gramian = step(X)
    assert gramian.grad_fn is None
    assert not gramian.requires_grad
    assert losses.requires_grad
    assert not losses.is_leaf


def test_adds_to_an_existing_grad(pair):
    model, step = pair
    model.first.weight.grad = torch.ones(4, 3, dtype=torch.float64)
    kept = model.unused.weight.grad = torch.full((2, 2), 7.0, dtype=torch.float64)
    step(X)[0].backward(W)
    wanted = expected(model)
    wanted["first.weight"] = wanted["first.weight"] + 1
    wanted["unused.weight"] = torch.full((2, 2), 7.0, dtype=torch.float64)
    assert_gradients_close(grads(model), wanted, RTOL)
    assert model.unused.weight.grad is kept
    assert model.unused.bias.grad is None


def test_optimizer_and_clipping(pair):
    model, step = pair
    wanted = expected(model)
    norm = torch.stack([g.norm() for g in wanted.values() if g is not None]).norm()
    before = {name: p.detach().clone() for name, p in trainable(model).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step(X)[0].backward(W)
    total = nn.utils.clip_grad_norm_(model.parameters(), norm.item() / 2)
    torch.testing.assert_close(total, norm, rtol=RTOL, atol=0)
    optimizer.step()
    for name, p in trainable(model).items():
        moved = 0 if wanted[name] is None else 0.25 * wanted[name]
        torch.testing.assert_close(p.detach(), before[name] - moved, rtol=1e-6, atol=1e-6)


def test_hooks_on_parameters_run_in_backward_alone(pair):
    model, step = pair
    weight, calls = model.first.weight, []
    handles = [
        weight.register_hook(lambda grad: 2 * grad),
        weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone())),
    ]
    losses, _ = step(X)
    assert calls == []
    losses.backward(W)
    for handle in handles:
        handle.remove()
    wanted = 2 * expected(model)["first.weight"]
    torch.testing.assert_close(weight.grad, wanted, rtol=RTOL, atol=1e-12)
    assert len(calls) == 1
    assert torch.equal(calls[0], weight.grad)


def test_second_backward_needs_retain_graph(pair):
    model, step = pair
    losses, _ = step(X)
    losses.backward(W, retain_graph=True)
    losses.backward(W)
    wanted = {name: g if g is None else 2 * g for name, g in expected(model).items()}
    assert_gradients_close(grads(model), wanted, RTOL)
    with pytest.raises(RuntimeError, match="second time"):
        losses.backward(W)


def test_steps_before_one_backward(pair):
    model, step = pair
    (first, _), (second, _) = step(X), step(X.flip(1))
    second.backward(W)
    first.backward(W)
    one, other = expected(model), expected(model, x=X.flip(1))
    wanted = {name: g if g is None else g + other[name] for name, g in one.items()}
    assert_gradients_close(grads(model), wanted, RTOL)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_forward_and_backward(pair, set_to_none):
    model, step = pair
    step(X.flip(1))[0].sum().backward()
    losses, _ = step(X)
    model.zero_grad(set_to_none=set_to_none)
    losses.backward(W)
    found, wanted = grads(model), expected(model)
    assert all(found[n] is None or not found[n].any() for n, g in wanted.items() if g is None)
    reached = [n for n, g in wanted.items() if g is not None]
    assert_gradients_close({n: found[n] for n in reached}, {n: wanted[n] for n in reached}, RTOL)


def test_autograd_grad_leaves_grad_alone(pair):
    model, step = pair
    names, params = zip(*trainable(model).items(), strict=True)
    found = torch.autograd.grad(step(X)[0], params, W, allow_unused=True)
    assert_gradients_close(dict(zip(names, found, strict=True)), expected(model), RTOL)
    assert all(p.grad is None for p in params)
    (bias,) = torch.autograd.grad(step(X)[0], [model.last.bias], W)
    torch.testing.assert_close(bias, expected(model)["last.bias"], rtol=RTOL, atol=1e-12)


@pytest.mark.parametrize(
    ("reduce", "weights"),
    [
        (lambda losses: losses[3], torch.eye(K)[3]),
        (lambda losses: losses.mean(), torch.full((K,), 1 / K)),
        (lambda losses: losses.sum(), torch.ones(K)),
        (lambda losses: (losses * W).sum(), W),
        (lambda losses: losses[1:3] @ W[1:3] - losses[0], torch.tensor([-1, *W[1:3], 0, 0])),
    ],
    ids=["one", "mean", "sum", "weighted", "slice"],
)
def test_loss_built_from_losses(pair, reduce, weights):
    model, step = pair
    reduce(step(X)[0]).backward()
    assert_gradients_close(grads(model), expected(model, weights.double()), 1e-7)


def test_create_graph_is_refused(pair):
    _, step = pair
    with pytest.raises(fxgram.UnsupportedBackward, match="create_graph"):
        step(X)[0].backward(W, create_graph=True)


def test_batch_that_requires_grad_is_refused_by_name(pair):
    _, step = pair
    with pytest.raises(fxgram.InvalidBatch, match=r"args\[0\].*requires grad"):
        step(X.clone().requires_grad_())


def test_inputs_of_backward(pair):
    model, step = pair
    losses, _ = step(X)
    losses.backward(W, inputs=[model.first.weight])
    wanted = expected(model)["first.weight"]
    torch.testing.assert_close(model.first.weight.grad, wanted, rtol=RTOL, atol=1e-12)
    assert model.first.bias.grad is None
    assert model.last.weight.grad is None


def test_losses_changed_in_place(pair):
    model, step = pair
    losses, _ = step(X)
    losses.mul_(W).sum().backward()
    assert_gradients_close(grads(model), expected(model), RTOL)


def test_backward_under_no_grad_and_in_anomaly_mode(pair):
    model, step = pair
    losses, _ = step(X)
    with torch.no_grad():
        losses.backward(W)
    assert_gradients_close(grads(model), expected(model), RTOL)
    model.zero_grad()
    with torch.autograd.set_detect_anomaly(True):
        step(X)[0].backward(W)
    assert_gradients_close(grads(model), expected(model), RTOL)


def test_zero_weights_and_nan_weights(pair):
    """A row of weight zero adds nothing; nan reaches every gradient, as in autograd."""
    model, step = pair
    step(X)[0].backward(torch.zeros_like(W))
    assert all(not p.grad.any() for p in [*model.first.parameters(), *model.last.parameters()])
    model.zero_grad()
    step(X)[0].backward(W * torch.nan)
    assert all(p.grad.isnan().all() for p in model.last.parameters())
