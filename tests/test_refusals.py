"""What is not supported says so: the class, the user's line or the module, and the way out."""

import threading

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1))
IDS = torch.arange(4 * K).reshape(K, 4) % 5


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


def refused(error, model, x=X, objective=squares, batch_dim=0):
    with pytest.raises(error) as caught:
        fxgram.compile(model, objective, batch_dim=batch_dim)(x)
    assert type(caught.value) is error
    return str(caught.value)


def looped(m, x):
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), m(x)))[
        1
    ].sum(1)


def scanned(m, x):
    steps = m(x).expand(3, -1, -1).clone()
    return scan(lambda c, y: (c + y, c * 2), x.new_zeros(len(x), 2), steps)[0].sum(1)


def attended(m, x):
    y = m(x).expand(1, 2, -1, -1)
    return flex_attention(y, y, y).sum((0, 1, 3))


@pytest.mark.parametrize("objective", [looped, scanned, attended], ids=lambda f: f.__name__)
def test_control_flow_as_an_operator(objective):
    message = refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)
    assert "test_refusals.py:" in message
    assert "torch.where" in message


def test_loop_until_values_are_small():
    def objective(m, x):
        y = m(x)
        while y.norm() > 0.1:
            y = y / 2
        return y.sum(1)

    message = refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)
    assert "while y.norm() > 0.1" in message
    assert "torch.where" in message


@pytest.mark.parametrize("build", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients(build):
    message = refused(fxgram.CaptureError, build(5, 3, sparse=True), IDS)
    assert "sparse=False" in message
    assert "test_refusals.py:" in message


@pytest.mark.parametrize("build", [nn.Embedding, nn.EmbeddingBag])
def test_embedding_that_renormalises_itself(build):
    message = refused(fxgram.CaptureError, build(5, 3, max_norm=0.5), IDS)
    assert "max_norm" in message
    assert "test_refusals.py:" in message
    assert "optimizer step" in message


def test_forward_that_writes_to_what_is_trained():
    def objective(m, x):
        with torch.no_grad():
            m.weight.clamp_(-0.1, 0.1)
        return squares(m, x)

    message = refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)
    assert "parameter `weight`" in message
    assert "after the optimizer step" in message
    assert "m.weight.clamp_(-0.1, 0.1)" in message


def test_sparse_tensors():
    def objective(m, x):
        return squares(m, torch.sparse.mm(torch.eye(3).to_sparse(), x.t()).t())

    message = refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)
    assert "sparse" in message
    assert "dense" in message


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_modules_of_torch_jit(how):
    inner = nn.Linear(3, 2)
    inner = torch.jit.script(inner) if how == "script" else torch.jit.trace(inner, X)
    message = refused(fxgram.InvalidArgument, nn.Sequential(inner, nn.Tanh()))
    assert "torch.jit cannot be captured: 0." in message
    assert "load_state_dict" in message


def test_parameters_without_values():
    assert "to_empty" in refused(fxgram.InvalidArgument, nn.Linear(3, 2, device="meta"))
    assert "run the model once" in refused(fxgram.InvalidArgument, nn.LazyLinear(2))


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


def clipped_by_hook(m, x):
    y = m(x)
    y.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    return y.square().sum(1)


@pytest.mark.parametrize(
    ("objective", "name"),
    [(lambda m, x: Clipped.apply(m(x)).square().sum(1), "Clipped"), (clipped_by_hook, "hooked")],
)
def test_backward_that_is_not_linear(objective, name):
    message = refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)
    assert f"`{name}`" in message
    assert "test_refusals.py:" in message
    assert "after the backward" in message
    message = refused(
        fxgram.UnfaithfulCapture, nn.Linear(3, 2), objective=objective, batch_dim=None
    )
    assert "not linear" in message


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(2 * x.detach().numpy())

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class DecidesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad if grad.sum() > 0 else 2 * grad


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (InPlace, ["`InPlace`", "return a new tensor"]),
        (Numpy, ["leaves PyTorch", "torch.library.custom_op", "2 * x.detach().numpy()"]),
        (DecidesInBackward, ["`DecidesInBackward`", "backward", "decisions by values"]),
    ],
)
def test_custom_functions_that_a_graph_cannot_hold(function, words):
    message = refused(
        fxgram.CaptureError,
        nn.Linear(3, 2),
        objective=lambda m, x: function.apply(m(x)).square().sum(1),
    )
    for word in words:
        assert word in message, message


@torch.library.custom_op("fxgram_refusals::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Compute `2 x`, without a derivative."""
    return 2 * x


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("fxgram_refusals::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    """Compute `2 x`, without a fake implementation."""
    return 2 * x


def test_custom_operator_without_derivative_or_fake():
    objective = lambda m, x: doubled(m(x)).sum(1)  # noqa: E731
    assert "register_autograd" in refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)
    objective = lambda m, x: unknown(m(x)).sum(1)  # noqa: E731
    assert "register_fake" in refused(fxgram.CaptureError, nn.Linear(3, 2), objective=objective)


def test_hook_on_a_parameter_inside_of_the_forward():
    def objective(m, x):
        m.weight.register_hook(lambda grad: 2 * grad)
        return squares(m, x)

    model = nn.Linear(3, 2)
    assert "outside of the forward" in refused(fxgram.CaptureError, model, objective=objective)
    assert not model.weight._backward_hooks


def test_hook_that_only_looks_is_said_not_to_be_called_again(caplog):
    def objective(m, x):
        y = m(x)
        y.register_hook(lambda grad: None)
        return y.square().sum(1)

    fxgram.compile(nn.Linear(3, 2), objective)(X)
    assert [r for r in caplog.records if "returns nothing" in r.getMessage()]


def test_other_threads_notice_nothing_of_a_capture():
    """Neither `len` nor `autograd.Function.apply` is another one there."""
    seen = []

    def elsewhere():
        try:
            x = torch.ones(4, requires_grad=True)
            Clipped.apply(x).sum().backward()
            seen.append((len(x), type(len(x)), float(x.grad.sum())))
        except Exception as error:
            seen.append(error)

    def objective(m, x):
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        return squares(m, x)

    fxgram.compile(nn.Linear(3, 2), objective)(X)
    assert seen
    for length, kind, total in seen:
        assert (length, kind) == (4, int)
        assert total == pytest.approx(0.04)


def test_len_of_real_tensors_and_of_torch_itself_while_capturing():
    table = torch.ones(7)

    def objective(m, x):
        assert type(len(table)) is int
        return squares(m, x) * len(table) + torch.arange(len(x))

    losses, _ = fxgram.compile(nn.Linear(3, 2), objective)(X)
    assert losses.shape == (K,)
