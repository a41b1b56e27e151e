"""Every error has its class, says what is wrong in the user's words, and what to do."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def squares(model, x):
    return model(x).square().sum(1)


def refused(error, objective, *batch, model=None, batch_dim=0):
    """Return the message of the error that the first call raises."""
    assert issubclass(error, fxgram.FxgramError)
    step = fxgram.compile(model or Two(), objective, batch_dim=batch_dim)
    with pytest.raises(error) as caught:
        step(*(batch or (X,)))
    assert type(caught.value) is error
    return str(caught.value)


LOSSES = {
    "scalar": (lambda m, x: squares(m, x).mean(), [r"[]", "reduction='none'"]),
    "integers": (lambda m, x: squares(m, x).long(), ["int64", "floating"]),
    "booleans": (lambda m, x: squares(m, x) > 0, ["bool", "floating"]),
    "not_a_tensor": (lambda m, x: 1.0, ["1.0"]),
    "none": (lambda m, x: None, ["None"]),
    "with_a_name": (lambda m, x: (squares(m, x), "mse"), ["a str at [1]", "aux=True"]),
    "with_integers": (lambda m, x: {"a": squares(m, x), "b": x.long()}, ["int64 at ['b']"]),
    "with_a_mean": (lambda m, x: [squares(m, x), m(x).mean()], ["shape [] at [1]"]),
    "empty_dict": (lambda m, x: {}, ["empty dict"]),
    "transposed_and_summed": (lambda m, x: m(x).square().sum(0), ["[2]"]),
    "one_too_few": (lambda m, x: squares(m, x)[1:], ["shape"]),
    "of_nobody": (lambda m, x: m.head.bias, ["[2]"]),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("k", [1, K])
def test_invalid_losses(name, k):
    objective, words = LOSSES[name]
    message = refused(fxgram.InvalidLosses, objective, X[:k])
    for word in ["batch_dim=0", *words]:
        assert word in message, message
    assert "_fx." not in message
    assert "Node" not in message


@pytest.mark.parametrize(
    "objective",
    [
        lambda m, x: squares(m, x).detach(),
        lambda m, x: x.sum(1),
        lambda m, x: torch.no_grad()(squares)(m, x),
        lambda m, x: x.sum(1) + m(x).argmax(1),
    ],
    ids=["detached", "without_model", "no_grad", "integers"],
)
def test_no_trainable_parameter_reached(objective):
    message = refused(fxgram.NoTrainableParameter, objective)
    assert "body.weight" in message
    assert "detach" in message


def test_no_parameter_requires_grad():
    message = refused(fxgram.NoTrainableParameter, squares, model=Two().requires_grad_(False))
    assert "none requires grad" in message


def test_no_parameter_at_all():
    refused(fxgram.NoTrainableParameter, squares, model=nn.Tanh())


def test_batch_sizes_differ():
    message = refused(
        fxgram.InvalidBatch, lambda m, x, y: squares(m, x) + y["z"], X, {"z": torch.rand(4)}
    )
    assert "`args[0]` has 5" in message
    assert "`args[1]['z']` has 4" in message
    assert "batch_dim=(0, None)" in message


def test_no_samples_anywhere():
    message = refused(fxgram.InvalidBatch, lambda m, s: squares(m, s * X), torch.tensor(2.0))
    assert "batch dimension" in message
    refused(fxgram.InvalidBatch, squares, X, batch_dim=(None,))


@pytest.mark.parametrize("batch_dim", [(0, 0), (), ((0, 0),), ({"x": 0},), [0, None]])
def test_batch_dim_does_not_fit(batch_dim):
    message = refused(fxgram.InvalidBatch, squares, batch_dim=batch_dim)
    assert "batch_dim" in message


@pytest.mark.parametrize("batch_dim", [2, -3, (5,)])
def test_batch_dim_beyond_the_dims_of_the_tensor(batch_dim):
    message = refused(fxgram.InvalidBatch, squares, batch_dim=batch_dim)
    assert "`args[0]` has 2 dims" in message


def test_shared_argument_that_holds_the_losses():
    """What is claimed to be shared gives no loss per sample."""
    refused(
        fxgram.InvalidLosses, lambda m, x, y: squares(m, x), X, torch.rand(K), batch_dim=(None, 0)
    )


class Bernoulli(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(3))

    def forward(self, x):
        return x * torch.normal(self.w, 1.0)


def test_random_operator_on_a_parameter_is_right_or_named():
    model = Bernoulli()
    step = fxgram.compile(model, squares)
    try:
        torch.manual_seed(0)
        losses, _ = step(X)
    except fxgram.FxgramError as error:
        assert "normal" in str(error)  # noqa: PT017
    else:
        torch.manual_seed(0)
        wanted = squares(model, X)
        torch.testing.assert_close(losses.detach(), wanted.detach())
        (grad,) = torch.autograd.grad(wanted.sum(), model.w)
        losses.sum().backward()
        torch.testing.assert_close(model.w.grad, grad)


def mine(m, x):
    out = squares(m, x)
    if out.ndim == 1:
        raise ValueError("my own words")
    return out


def test_error_of_the_user_is_the_cause():
    step = fxgram.compile(Two(), mine)
    with pytest.raises(fxgram.CaptureError, match=r"my own words") as caught:
        step(X)
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value.__cause__) == "my own words"
    assert "test_errors.py:" in str(caught.value)
    assert 'raise ValueError("my own words")' in str(caught.value)


def test_wrong_shapes_name_the_line():
    message = refused(fxgram.CaptureError, lambda m, x: squares(m, x[:, :2]))
    assert "self.head(self.body(x).tanh())" in message


def test_several_errors_in_turn_and_then_a_good_batch():
    step = fxgram.compile(Two(), lambda m, x, y: F.mse_loss(m(x), y, reduction="none").sum(1))
    with pytest.raises(fxgram.InvalidBatch):
        step(X, torch.rand(4, 2))
    with pytest.raises(fxgram.FxgramError):
        step(X, torch.rand(K, 3))
    assert step(X, torch.rand(K, 2))[1].shape == (K, K)


def test_parameters_without_values_yet():
    with pytest.raises(fxgram.FxgramError, match=r"weight"):
        fxgram.compile(nn.LazyLinear(2), squares)(X)


@pytest.mark.parametrize("check", [True, False])
def test_tuple_of_losses_is_never_taken_for_its_first_item(check):
    step = fxgram.compile(Two(), lambda m, x: (squares(m, x), len(x)), check=check)
    with pytest.raises(fxgram.InvalidLosses):
        step(X)


@pytest.mark.parametrize("batch_dim", [0, None])
@pytest.mark.parametrize("value", [lambda y: y, lambda y: (y,), lambda y: (y, y, y), lambda y: 2.0])
def test_aux_without_a_pair(value, batch_dim):
    step = fxgram.compile(Two(), lambda m, x: value(squares(m, x)), aux=True, batch_dim=batch_dim)
    with pytest.raises(
        fxgram.InvalidLosses, match=r"aux=True the objective returns \(losses, aux\)"
    ):
        step(X)
