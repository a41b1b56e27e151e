"""Models inside of torch.compile, DataParallel or DistributedDataParallel are unwrapped."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from agreement import assert_agrees
from torch import nn

import fxgram


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def squares(model, x):
    return model(x).square().sum(1)


@contextmanager
def process_group():
    """One process that is a group of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled_in_place": compiled_in_place,
    "data_parallel": nn.DataParallel,
    "compiled_inside": lambda m: nn.Sequential(torch.compile(m[0], backend="eager"), m[1], m[2]),
    "both": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_model_is_the_model(name):
    model = network()
    step = fxgram.compile(WRAPPERS[name](model), squares)
    for k in (1, 3, 8):
        assert_agrees(step, model, squares, torch.randn(k, 3, dtype=torch.float64))
    assert {use.method for use in step.uses} == {"rule"}


def test_distributed_model_is_the_model():
    """Gradients are those of this process: nothing averages them."""
    model = network()
    with process_group():
        step = fxgram.compile(nn.parallel.DistributedDataParallel(model), squares)
        for k in (1, 3, 8):
            assert_agrees(step, model, squares, torch.randn(k, 3, dtype=torch.float64))
    assert all(not use.parameter.startswith("module.") for use in step.uses)


def test_compiled_objective():
    model = network()
    step = fxgram.compile(model, torch.compile(squares, backend="eager"))
    for k in (1, 3, 8):
        assert_agrees(step, model, squares, torch.randn(k, 3, dtype=torch.float64))
