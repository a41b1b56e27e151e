"""Adapters of PEFT around the layers of a small network, as they come."""

import peft
import pytest
import torch
from agreement import assert_agrees
from torch import nn

import fxgram


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh())


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.last(self.first(ids).sin())


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 2), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh().flatten(1))


def vectors(k):
    return torch.randn(k, 3, dtype=torch.float64)


def images(k):
    return torch.randn(k, 1, 3, 3, dtype=torch.float64)


def ids(k):
    return torch.randint(5, (k, 3))


BOTH = {"target_modules": ["first", "last"]}
ADAPTERS = {
    "lora": (peft.LoraConfig(r=2, **BOTH), Perceptron, vectors),
    "lora_with_bias": (peft.LoraConfig(r=2, bias="all", **BOTH), Perceptron, vectors),
    "lora_with_dropout": (peft.LoraConfig(r=2, lora_dropout=0.4, **BOTH), Perceptron, vectors),
    "lora_by_magnitude": (peft.LoraConfig(r=2, use_dora=True, **BOTH), Perceptron, vectors),
    "lora_of_words": (peft.LoraConfig(r=2, **BOTH), Words, ids),
    "lora_of_images": (peft.LoraConfig(r=2, **BOTH), Images, images),
    "ia3": (peft.IA3Config(feedforward_modules=["last"], **BOTH), Perceptron, vectors),
    "oft": (peft.OFTConfig(r=1, oft_block_size=0, target_modules=["last"]), Perceptron, vectors),
    # in training mode these draw one number and look at it, whether they are to drop the adapter
    "loha_in_eval_mode": (peft.LoHaConfig(r=2, **BOTH), Perceptron, vectors),
    "lokr_in_eval_mode": (peft.LoKrConfig(r=2, **BOTH), Perceptron, vectors),
}  # fmt: skip


def adapted(config, build):
    """Put the adapter on, and its parameters off the zeros and ones they start with."""
    torch.manual_seed(0)
    model = peft.inject_adapter_in_model(config, build()).double()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name):
    config, build, draw = ADAPTERS[name]
    model = adapted(config, build).train("eval" not in name)
    step = fxgram.compile(model, squares, cross_terms=True)
    for k in (1, 3, 8):
        assert_agrees(step, model, squares, draw(k))
    assert not [use for use in step.uses if use.method == "fallback"]
    assert all("base_layer.weight" not in use.parameter for use in step.uses)


def test_adapted_model_of_peft():
    """The wrapper around the model merges and unmerges; merged, nothing is left to train."""
    torch.manual_seed(0)
    model = peft.get_peft_model(Perceptron(), peft.LoraConfig(r=2, **BOTH)).double()
    step = fxgram.compile(model, squares)
    assert_agrees(step, model, squares, vectors(3))
    model.merge_adapter()
    with pytest.raises(fxgram.NoTrainableParameter):
        step(vectors(3))
    model.unmerge_adapter()
    assert_agrees(step, model, squares, vectors(3))


def test_adapter_that_is_dropped_by_chance_is_refused_with_the_line():
    config, build, draw = ADAPTERS["loha_in_eval_mode"]
    with pytest.raises(fxgram.CaptureError, match=r"torch\.rand\(1\) > module_dropout"):
        fxgram.compile(adapted(config, build), squares)(draw(3))
