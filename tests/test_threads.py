"""Steps that are compiled and run in several threads at once."""

import threading

import torch
from torch import nn

import fxgram


def squares(model, x):
    return model(x).square().sum(1)


def test_first_calls_in_several_threads():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)) for _ in range(2)]
    steps = [fxgram.compile(model, squares) for model in models]
    x = torch.randn(4, 6)
    found: list[tuple[int, torch.Tensor]] = []

    def run(at):
        found.append((at, steps[at](x)[1]))

    threads = [threading.Thread(target=run, args=(at,)) for at in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(type(p) is nn.Parameter for model in models for p in model.parameters())
    for at, gramian in found:
        assert torch.equal(gramian, steps[at](x)[1])
