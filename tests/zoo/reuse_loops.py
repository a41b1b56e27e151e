"""Loops of cells over a sequence: every step is one use of each parameter.

The twin has one cell per step.
"""

from torch import Tensor, nn

from .case import Case

D = 3


class Recurrent(nn.Module):
    """A loop of linear layers over the steps of a sequence."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(2, D) for _ in range(copies))
        self.states = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(copies))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), D)
        for t in range(x.shape[1]):
            layer = t % len(self.inputs)
            state = (self.inputs[layer](x[:, t]) + self.states[layer](state)).tanh()
        return state


class CellLoop(nn.Module):
    """A loop of recurrent cells; the first step leaves the state to the cell."""

    def __init__(self, cell: type[nn.RNNCellBase], copies: int, **options) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cell(2, D, **options) for _ in range(copies))

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cells[t % len(self.cells)](x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


def _steps(modules: str, steps: int) -> dict[str, str]:
    return {f"{modules}.{t}": f"{modules}.0" for t in range(steps)}


def _sequences(draw, k):
    return (draw.normal(k, 3, 2),)


def _cells(name, cell, **options):
    return Case(
        name,
        lambda: CellLoop(cell, 1, **options),
        _sequences,
        untied=lambda: CellLoop(cell, 3, **options),
        copies=_steps("cells", 3),
    )


CASES = (
    Case(
        "linear_loop",
        lambda: Recurrent(1),
        _sequences,
        untied=lambda: Recurrent(3),
        copies=_steps("inputs", 3) | _steps("states", 3),
    ),
    _cells("gru_cell_loop", nn.GRUCell),
    _cells("lstm_cell_loop", nn.LSTMCell),
    _cells("rnn_cell_loop", nn.RNNCell, bias=False),
    _cells("relu_rnn_cell_loop", nn.RNNCell, nonlinearity="relu"),
)
