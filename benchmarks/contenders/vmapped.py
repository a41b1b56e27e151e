"""Per-sample gradients of everything from torch.func, held at once."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.cases import Objective
from benchmarks.contenders.contract import Run


def gramian(model: nn.Module, objective: Objective) -> Run:
    """Return `vmap(grad)`, then `J Jᵀ` and `wᵀJ`; needs no backward."""
    # Attention on the CPU is looped over the samples: torch has no batching rule for it.
    warnings.filterwarnings("ignore", "There is a performance drop")
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        call: Callable = lambda inputs: functional_call(model, values, (inputs,))  # noqa: E731
        return objective(call, x[None], y[None])[0]

    jacobian = vmap(grad(loss), in_dims=(None, 0, 0))

    def run(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        detached = {name: p.detach() for name, p in parameters.items()}
        rows = jacobian(detached, x, y)
        gramian = torch.zeros(len(x), len(x), device=x.device)
        for name, p in parameters.items():
            flat = rows[name].flatten(1)  # [k, numel]
            gramian.addmm_(flat, flat.T)
            gradient = (weights @ flat).view_as(p)
            p.grad = gradient if p.grad is None else p.grad.add_(gradient)
        return gramian, weights

    return run
