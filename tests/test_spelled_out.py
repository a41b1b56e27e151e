"""Recurrent layers, cells and other fused operators are spelled out, and stay one use a weight."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees
from oracle import assert_gramian_close, gramian
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from zoo.free import Free

import fxgram

K, T, D = 3, 4, 2


class Layer(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, core):
        super().__init__()
        self.core = core

    def forward(self, x):
        return self.core(x)[0][:, -1]


class Loop(nn.Module):
    """The last state of a cell that runs over the sequence."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


FUSED_AND_CELL = {
    "lstm": (nn.LSTM, nn.LSTMCell),
    "gru": (nn.GRU, nn.GRUCell),
    "rnn_tanh": (nn.RNN, nn.RNNCell),
}


def squares(model, x):
    return model(x).square().sum(1)


def sequences(k=K):
    return torch.randn(k, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(k))


def compiled(model, *batch, **options):
    step = fxgram.compile(model, squares, **options)
    return step, step(*batch)[1]


@pytest.mark.parametrize("name", FUSED_AND_CELL)
def test_fused_layer_is_one_use_of_each_weight(name):
    layer, _ = FUSED_AND_CELL[name]
    step, _ = compiled(Layer(layer(D, 3, batch_first=True)).double(), sequences())
    assert [row.parameter for row in step.uses] == [
        "core.weight_ih_l0", "core.weight_hh_l0", "core.bias_ih_l0", "core.bias_hh_l0"
    ]  # fmt: skip
    assert {row.op for row in step.uses} == {name}
    assert {row.method for row in step.uses} == {"rule"}
    assert all("self.core(x)" in row.source for row in step.uses)
    assert step.passes["spell_out"].uses == 4


@pytest.mark.parametrize("name", FUSED_AND_CELL)
def test_loop_of_cells_is_a_use_a_step_and_equals_the_layer_with_cross_terms(name):
    layer, cell = FUSED_AND_CELL[name]
    fused, loop = Layer(layer(D, 3, batch_first=True)).double(), Loop(cell(D, 3)).double()
    with torch.no_grad():
        for one, other in zip(fused.parameters(), loop.parameters(), strict=True):
            other.copy_(one)
    x = sequences()
    step, per_use = compiled(loop, x)
    assert len(step.uses) == 4 * T
    assert {row.op for row in step.uses} == {f"{name}_cell"}
    _, exact = compiled(loop, x, cross_terms=True)
    expected = gramian(fused, squares, (x,))
    assert_gramian_close(exact, expected, 1e-9)
    assert_gramian_close(compiled(fused, x)[1], expected, 1e-9)
    assert not torch.allclose(per_use, expected)


def test_layer_called_twice_has_cross_terms_between_the_calls_alone():
    class Twice(Layer):
        def forward(self, x):
            return super().forward(self.core(x)[0].flip(1))

    model = Twice(nn.GRU(D, D, batch_first=True)).double()
    step = fxgram.compile(model, squares, cross_terms=True)
    for k in (3, 1, 2, 8, 0):
        assert_agrees(step, model, squares, sequences(k))
    assert len(compiled(model, sequences())[0].uses) == 8


def test_operators_without_parameters_stay_as_they_are():
    def attended(m, x):
        q = x @ m.w
        return F.scaled_dot_product_attention(q, q, x).sum(1)

    step, _ = compiled(Free(attended, w=(D, D)).double(), sequences())
    for node in step.passes["spell_out"].graph.graph.nodes:
        assert "softmax" not in str(node.target)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_with_learned_bias_draws_what_eager_draws(dropout):
    def attended(m, x):
        q = (x @ m.w).unsqueeze(1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=m.bias, dropout_p=dropout).sum(
            (1, 2)
        )

    model = Free(attended, w=(D, D), bias=(T, T)).double()
    step = fxgram.compile(model, squares)
    for k in (3, 1, 8):
        assert_agrees(step, model, squares, sequences(k), seed=k)
    assert {row.method for row in step.uses} == {"rule"}


def test_packed_sequences_are_refused_with_the_way_out():
    class Packed(Layer):
        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.core(packed)[0], batch_first=True)[0].sum(1)

    model = Packed(nn.LSTM(D, 3, batch_first=True)).double()
    step = fxgram.compile(model, lambda m, x, n: m(x, n).square().sum(1))
    with pytest.raises(fxgram.CaptureError, match="padded batch and mask") as caught:
        step(sequences(), torch.tensor([4, 2, 3]))
    assert "pack_padded_sequence(x, lengths" in str(caught.value)
