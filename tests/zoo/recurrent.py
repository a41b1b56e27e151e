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


class GivenState(nn.Module):
    """The first state comes with the batch; both states are read."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(D, 3, 2, proj_size=1, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        outputs, (_, memory) = self.core(x.transpose(0, 1), (hidden, memory))
        return outputs.transpose(0, 1), memory.transpose(0, 1)


class LearnedStates(nn.Module):
    """Both first states of both directions are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(D, D, bidirectional=True, batch_first=True)
        self.hidden, self.memory = (nn.Parameter(torch.randn(2, 1, D)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        states = self.hidden.repeat(1, len(x), 1), self.memory.expand(-1, len(x), -1).contiguous()
        return self.core(x, states)[0]


class Attended(nn.Module):
    """Attention over the outputs of a GRU, with its last state as the query."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.key = nn.GRU(D, D, batch_first=True), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.core(x)
        weights = (self.key(outputs) @ last[0].unsqueeze(-1)).softmax(1)
        return (weights * outputs).sum(1)


class Frozen(nn.Module):
    """A recurrent layer without gradient, behind a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.core = nn.Linear(D, D), nn.GRU(D, D, batch_first=True)
        self.core.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.core(self.embed(x))[0]


def _case(name, build, random=False):
    return Case(
        name, build, lambda draw, k: (draw.normal(k, T, D),), sizes=(1, 2, 3, 8), random=random
    )


def _with_states(draw, k):
    return draw.normal(k, T, D), draw.normal(2, k, 1), draw.normal(2, k, 3)


def _deep(core, **options):
    return Recurrent(core(D, D, 3, dropout=0.4, batch_first=True, **options))


CASES = (
    _case("rnn", lambda: Recurrent(nn.RNN(D, D, batch_first=True))),
    _case("rnn_relu_sequence_first", lambda: SequenceFirst(nn.RNN(D, D, nonlinearity="relu"))),
    _case("lstm", lambda: Recurrent(nn.LSTM(D, D, batch_first=True))),
    _case(
        "lstm_two_layers_both_ways",
        lambda: Recurrent(nn.LSTM(D, D, 2, batch_first=True, bidirectional=True)),
    ),
    _case("lstm_projected", lambda: Recurrent(nn.LSTM(D, 3, proj_size=1, batch_first=True))),
    _case("lstm_with_dropout", lambda: _deep(nn.LSTM), random=True),
    _case("lstm_with_dropout_in_eval_mode", lambda: _deep(nn.LSTM).eval()),
    _case("lstm_with_dropout_both_ways", lambda: _deep(nn.LSTM, bidirectional=True), random=True),
    _case(
        "lstm_projected_both_ways",
        lambda: SequenceFirst(nn.LSTM(D, 4, 2, proj_size=2, bidirectional=True)),
    ),
    Case(
        "lstm_with_given_state", GivenState, _with_states, batch_dim=(0, 1, 1), sizes=(1, 2, 3, 8)
    ),
    _case("lstm_with_learned_states", LearnedStates),
    _case("gru", lambda: Recurrent(nn.GRU(D, 3, batch_first=True, bias=False))),
    _case("gru_last_state", lambda: Recurrent(nn.GRU(D, D, batch_first=True), last=True)),
    _case("gru_with_learned_state", LearnedState),
    _case("gru_with_dropout", lambda: _deep(nn.GRU), random=True),
    _case("gru_with_attention", Attended),
    _case("frozen_gru", Frozen),
)
