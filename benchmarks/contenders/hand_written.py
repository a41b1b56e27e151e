"""The floor for the overhead: an MLP's step in ATen calls behind a single autograd node.

k, l: samples; i: in; o: out. `A` [k,i] are the inputs of a layer and `B` [k,o] the cotangents of
its outputs; weight and bias together give `(A Aᵀ + 1) ∘ (B Bᵀ)`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import Objective, classification
from benchmarks.contenders.contract import Run


class Step(torch.autograd.Function):
    """`losses, gramian = Step.apply(x, y, *parameters)`: linear layers with ReLU between them."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        weights, biases = parameters[::2], parameters[1::2]
        inputs = [x.flatten(1)]
        for weight, bias in zip(weights[:-1], biases[:-1]):
            inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
        log_p = torch.addmm(biases[-1], inputs[-1], weights[-1].t()).log_softmax(1)
        losses = F.nll_loss(log_p, y, reduction="none")
        cotangent = log_p.exp_()
        cotangent[torch.arange(len(y), device=y.device), y] -= 1
        cotangents = []
        gramian = cotangent.new_zeros(len(y), len(y))
        for i in reversed(range(len(inputs))):
            cotangents.append(cotangent)
            pairs = torch.mm(inputs[i], inputs[i].t()).add_(1)
            gramian.addcmul_(pairs, torch.mm(cotangent, cotangent.t()))
            if i:  # the input of every layer but the first is the output of a ReLU
                below = torch.mm(cotangent, weights[i])
                cotangent = torch.ops.aten.threshold_backward.default(below, inputs[i], 0)
        ctx.save_for_backward(*inputs, *reversed(cotangents))
        ctx.mark_non_differentiable(gramian)
        return losses, gramian

    @staticmethod
    def backward(ctx, grad_losses: Tensor, _: Tensor) -> tuple:
        half = len(ctx.saved_tensors) // 2
        gradients = []
        for A, B in zip(ctx.saved_tensors[:half], ctx.saved_tensors[half:]):
            weighted = B.t() * grad_losses  # [o,k]
            gradients += [weighted @ A, weighted.sum(1)]
        return None, None, *gradients


def gramian(model: nn.Module, objective: Objective) -> Run:
    """Return the node and its backward.

    Raises:
        TypeError: The model is no MLP.
    """
    layers = list(model.children())
    mlp = bool(layers) and all(isinstance(m, nn.Flatten | nn.Linear | nn.ReLU) for m in layers)
    if not mlp or objective is not classification:
        raise TypeError("written for the MLPs alone")
    parameters = list(model.parameters())

    def run(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        losses, gramian = Step.apply(x, y, *parameters)
        losses.backward(weights)
        return gramian, weights

    return run
