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


class GRUCellLoop(nn.Module):
    def __init__(self, copies: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(2, D) for _ in range(copies))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), D)
        for t in range(x.shape[1]):
            state = self.cells[t % len(self.cells)](x[:, t], state)
        return state


def _steps(modules: str, steps: int) -> dict[str, str]:
    return {f"{modules}.{t}": f"{modules}.0" for t in range(steps)}


def _sequences(draw, k):
    return (draw.normal(k, 3, 2),)


CASES = (
    Case(
        "linear_loop",
        lambda: Recurrent(1),
        _sequences,
        untied=lambda: Recurrent(3),
        copies=_steps("inputs", 3) | _steps("states", 3),
    ),
    Case(
        "gru_cell_loop",
        lambda: GRUCellLoop(1),
        _sequences,
        untied=lambda: GRUCellLoop(3),
        copies=_steps("cells", 3),
        fallback=True,
    ),
)
