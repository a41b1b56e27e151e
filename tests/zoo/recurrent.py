"""Recurrent layers of torch: one use of each weight, exact over time."""

import torch
from torch import Tensor, nn

from .case import Case

T, D = 3, 2


class Recurrent(nn.Module):
    """Returns all outputs, or the last state."""

    def __init__(self, core: nn.Module, last: bool = False) -> None:
        super().__init__()
        self.core, self.last = core, last

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.core(x)
        if self.last:
            state = state[0] if isinstance(state, tuple) else state
            return state.transpose(0, 1)
        return outputs


class SequenceFirst(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class LearnedState(nn.Module):
    """The first state is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.state = nn.GRU(D, D, batch_first=True), nn.Parameter(torch.randn(1, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x, self.state.expand(-1, len(x), -1).contiguous())[0]


def _case(name, build):
    return Case(name, build, lambda draw, k: (draw.normal(k, T, D),), sizes=(1, 2, 3, 32))


CASES = (
    _case("rnn", lambda: Recurrent(nn.RNN(D, D, batch_first=True))),
    _case("rnn_relu_sequence_first", lambda: SequenceFirst(nn.RNN(D, D, nonlinearity="relu"))),
    _case("lstm", lambda: Recurrent(nn.LSTM(D, D, batch_first=True))),
    _case(
        "lstm_two_layers_both_ways",
        lambda: Recurrent(nn.LSTM(D, D, 2, batch_first=True, bidirectional=True)),
    ),
    _case("lstm_projected", lambda: Recurrent(nn.LSTM(D, 3, proj_size=1, batch_first=True))),
    _case("gru", lambda: Recurrent(nn.GRU(D, 3, batch_first=True, bias=False))),
    _case("gru_last_state", lambda: Recurrent(nn.GRU(D, D, batch_first=True), last=True)),
    _case("gru_with_learned_state", LearnedState),
)
