"""Models that are moved, frozen, switched or given other parameters after they were compiled."""

import copy

import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram

K = 5
X = torch.randn(K, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Model(nn.Module):
    """A BatchNorm that always is in eval mode, and a dropout that follows train() and eval()."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.dropout = nn.Dropout(0.5)
        self.norm.running_mean.normal_()

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.last(self.dropout(self.norm(self.first(x)).tanh()))


def squares(model, x):
    return model(x).square().sum(1)


@pytest.fixture
def pair():
    """Give a model and its step, after a first call."""
    torch.manual_seed(0)
    model = Model().double().train()
    step = fxgram.compile(model, squares)
    assert_agrees(step, model, squares, X)
    return model, step


def test_cast_to_another_dtype():
    torch.manual_seed(0)
    model = Model().train()
    step = fxgram.compile(model, squares)
    assert_agrees(step, model, squares, X.float(), rtol=1e-4)
    model.double()
    assert_agrees(step, model, squares, X)
    model.float()
    assert_agrees(step, model, squares, X.float(), rtol=1e-4)


def test_frozen_in_part_and_unfrozen(pair):
    model, step = pair
    model.last.requires_grad_(False)
    assert_agrees(step, model, squares, X)
    model.first.weight.requires_grad_(False)
    assert_agrees(step, model, squares, X)
    model.requires_grad_(True)
    assert_agrees(step, model, squares, X)


def test_frozen_as_a_whole_is_refused(pair):
    model, step = pair
    model.requires_grad_(False)
    with pytest.raises(fxgram.NoTrainableParameter):
        step(X)


def test_train_and_eval(pair):
    model, step = pair
    model.eval()
    assert_agrees(step, model, squares, X)
    model.train()
    assert_agrees(step, model, squares, X)


def test_batch_norm_switched_to_training_is_refused(pair):
    model, step = pair
    model.norm.train()
    with pytest.raises(fxgram.CoupledSamples, match="batch_norm"):
        step(X)
    model.norm.eval()
    assert_agrees(step, model, squares, X)


def test_dropout_rate_changed(pair):
    model, step = pair
    model.dropout.p = 0.2
    assert_agrees(step, model, squares, X)


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_loaded(pair, assign):
    model, step = pair
    state = {name: value + 0.5 for name, value in copy.deepcopy(model.state_dict()).items()}
    state["norm.num_batches_tracked"] = model.norm.num_batches_tracked.clone()
    model.load_state_dict(state, assign=assign)
    assert_agrees(step, model, squares, X)


def test_parameter_replaced(pair):
    model, step = pair
    model.first.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    assert_agrees(step, model, squares, X)


def test_parameter_of_another_shape(pair):
    model, step = pair
    model.first.weight = nn.Parameter(torch.randn(4, 2, dtype=torch.float64))
    assert_agrees(step, model, squares, X[:, :2])


def test_buffer_replaced(pair):
    model, step = pair
    model.norm.running_mean = torch.randn(4, dtype=torch.float64)
    assert_agrees(step, model, squares, X)


def test_bias_removed(pair):
    model, step = pair
    model.last.bias = None
    assert_agrees(step, model, squares, X)


def test_submodule_replaced(pair):
    model, step = pair
    model.last = nn.Linear(4, 3, dtype=torch.float64)
    assert_agrees(step, model, squares, X)
    model.last = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    assert_agrees(step, model, squares, X)


def test_weight_normed_later(pair):
    model, step = pair
    nn.utils.parametrizations.weight_norm(model.last)
    assert_agrees(step, model, squares, X)


def test_tied_later():
    """Tying makes one parameter of two; afterwards it is used twice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    step = fxgram.compile(model.double(), squares)
    assert_agrees(step, model, squares, X)
    untied = copy.deepcopy(model)
    model[2].weight = model[0].weight
    with torch.no_grad():
        untied[2].weight.copy_(model[0].weight)
    losses, gramian = step(X)
    losses.sum().backward()
    wanted = fxgram.compile(untied, squares)(X)
    wanted[0].sum().backward()
    both = untied[0].weight.grad + untied[2].weight.grad
    torch.testing.assert_close(gramian, wanted[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model[0].weight.grad, both, rtol=1e-9, atol=1e-9)


def test_forward_hook_added_later(pair):
    model, step = pair
    handle = model.first.register_forward_hook(lambda module, args, out: 2 * out)
    assert_agrees(step, model, squares, X)
    handle.remove()
    assert_agrees(step, model, squares, X)
