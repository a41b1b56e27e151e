"""Recurrent layers and cells, step by step.

Index legend: k samples, t steps, h hidden features. The input's projection is one product for all
steps, `[t, k, gates * h]`; the state's is one for each step, by the same weight.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

State = tuple[Tensor, ...]  # one [k, h] for each state; the first is the cell's output


class Weights(NamedTuple):
    """The parameters of one cell."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


Step = Callable[[Tensor, State, Weights], State]  # (projected input, state) -> next state


def _lstm_step(projected: Tensor, state: State, weights: Weights) -> State:
    hidden, memory = state
    gates = F.linear(hidden, weights.hidden, weights.hidden_bias) + projected
    into, keep, new, out = gates.chunk(4, 1)
    memory = keep.sigmoid() * memory + into.sigmoid() * new.tanh()
    hidden = out.sigmoid() * memory.tanh()
    if weights.projection is not None:
        hidden = F.linear(hidden, weights.projection)
    return hidden, memory


def _gru_step(projected: Tensor, state: State, weights: Weights) -> State:
    (hidden,) = state
    reset, update, new = projected.chunk(3, 1)
    gates = F.linear(hidden, weights.hidden, weights.hidden_bias)
    hidden_reset, hidden_update, hidden_new = gates.chunk(3, 1)
    new = (new + hidden_new * (hidden_reset + reset).sigmoid()).tanh()
    return ((hidden - new) * (hidden_update + update).sigmoid() + new,)


def _tanh_step(projected: Tensor, state: State, weights: Weights) -> State:
    return ((F.linear(state[0], weights.hidden, weights.hidden_bias) + projected).tanh(),)


def _relu_step(projected: Tensor, state: State, weights: Weights) -> State:
    return ((F.linear(state[0], weights.hidden, weights.hidden_bias) + projected).relu(),)


def _sequence(
    step: Step, inputs: Tensor, state: State, weights: Weights, backward: bool
) -> tuple[Tensor, State]:
    """One layer in one direction: all outputs `[t, k, h]` and the last state."""
    projected = F.linear(inputs, weights.input, weights.input_bias).unbind(0)
    outputs = []
    for one in reversed(projected) if backward else projected:
        state = step(one, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


def _layers(step: Step) -> Callable:
    """All layers in all directions, for the arguments of `aten.lstm`, `gru`, `rnn_tanh`, ..."""

    def layers(
        inputs: Tensor,
        states: Tensor | Sequence[Tensor],
        parameters: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        states = [states] if isinstance(states, Tensor) else states
        ways = 2 if bidirectional else 1
        cells = _by_cell(parameters, has_biases, num_layers * ways)
        outputs, last = inputs.transpose(0, 1) if batch_first else inputs, []
        for layer in range(num_layers):
            found = []
            for way in range(ways):
                at = layer * ways + way
                state = tuple(s[at] for s in states)
                seen, state = _sequence(step, outputs, state, cells[at], backward=way == 1)
                found.append(seen)
                last.append(state)
            outputs = torch.cat(found, 2) if bidirectional else found[0]
            if dropout and train and layer < num_layers - 1:
                outputs = F.dropout(outputs, dropout, True)
        outputs = outputs.transpose(0, 1) if batch_first else outputs
        return outputs, *(torch.stack(each) for each in zip(*last, strict=True))

    return layers


def _by_cell(parameters: Sequence[Tensor], has_biases: bool, cells: int) -> list[Weights]:
    """Cut the flat list of parameters; a projection comes last in each cell."""
    count, found = len(parameters) // cells, []
    for cell in range(cells):
        own = list(parameters[cell * count : (cell + 1) * count])
        biases = own[2:4] if has_biases else [None, None]
        found.append(Weights(*own[:2], *biases, *own[4 if has_biases else 2 :]))
    return found


def _cell(step: Step) -> Callable:
    """One step, for the arguments of `aten.lstm_cell`, `gru_cell`, ..."""

    def cell(
        inputs: Tensor,
        state: Tensor | Sequence[Tensor],
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor | State:
        single = isinstance(state, Tensor)
        projected = F.linear(inputs, w_ih, b_ih)
        found = step(
            projected, (state,) if single else tuple(state), Weights(w_ih, w_hh, b_ih, b_hh)
        )
        return found[0] if single else found

    return cell


SPELLINGS = {
    aten.lstm.input: _layers(_lstm_step),
    aten.gru.input: _layers(_gru_step),
    aten.rnn_tanh.input: _layers(_tanh_step),
    aten.rnn_relu.input: _layers(_relu_step),
    aten.lstm_cell.default: _cell(_lstm_step),
    aten.gru_cell.default: _cell(_gru_step),
    aten.rnn_tanh_cell.default: _cell(_tanh_step),
    aten.rnn_relu_cell.default: _cell(_relu_step),
}
