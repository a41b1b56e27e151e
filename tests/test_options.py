"""Options of `compile` that it does not take are refused at once, by name."""

import pytest
import torch
from torch import nn

import fxgram


def squares(model, x):
    return model(x).square().sum(1)


def test_model_is_no_module():
    with pytest.raises(fxgram.InvalidArgument, match=r"`model` must be an nn.Module, not function"):
        fxgram.compile(squares, squares)


def test_objective_is_not_callable():
    with pytest.raises(fxgram.InvalidArgument, match="`objective` must be callable, not Tensor"):
        fxgram.compile(nn.Linear(3, 2), torch.ones(3))


RESERVED = {
    "parameters": ["body"],
    "accumulate_dtype": torch.float64,
    "backend": "inductor",
    "group": object(),
}


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_option_is_named(name):
    with pytest.raises(NotImplementedError, match=rf"{name}=.*not implemented yet"):
        fxgram.compile(nn.Linear(3, 2), squares, **{name: RESERVED[name]})


@pytest.mark.parametrize("batch_dim", ["first", (0, 0.5), True])
def test_batch_dim_is_no_dim(batch_dim):
    with pytest.raises(fxgram.InvalidArgument, match="batch_dim="):
        fxgram.compile(nn.Linear(3, 2), squares, batch_dim=batch_dim)
