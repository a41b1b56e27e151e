"""Calls that autograd alone looks into: custom functions, custom operators, hooks, checkpoints."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from .case import Case

D = 3


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reverse(torch.autograd.Function):
    """Returns its input, and turns the gradient round."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None


class Product(torch.autograd.Function):
    """Two outputs and a size; the gradients are wrong by factors that nobody can guess."""

    @staticmethod
    def forward(x, weight, options, count):
        scaled = options["scale"] * (x @ weight)
        return scaled, x.sum(1, keepdim=True).expand(count, 2) * 1.0, x.argmax(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, options, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(output[2])
        ctx.scale = options["scale"]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, of_sums, _):
        x, weight = ctx.saved_tensors
        of_x = 2 * ctx.scale * grad @ weight.t() + of_sums.sum(1, keepdim=True)
        return of_x, 3 * ctx.scale * x.t() @ grad, None, None


class Masked(torch.autograd.Function):
    """Its backward writes in place, by a mask: vmap cannot batch it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grad = grad.clone()
        grad[x < 0] = 0.0
        return grad


class Noisy(torch.autograd.Function):
    """Draws a mask, as dropout does."""

    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


@torch.library.custom_op("fxgram_zoo::scaled_product", mutates_args=())
def scaled_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `sin(x) @ weight`."""
    return x.sin() @ weight


@scaled_product.register_fake
def _(x, weight):
    return x @ weight


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    x, weight = ctx.saved_tensors
    return (grad @ weight.t()) * x.cos(), x.sin().t() @ grad


scaled_product.register_autograd(_backward, setup_context=_setup)


class Layer(nn.Module):
    """One layer and one matrix; subclasses say what the forward does with them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(D, D), nn.Parameter(torch.randn(D, 2))


class RoundedValues(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Round.apply(3 * self.layer(x)) @ self.weight


class RoundedWeight(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x), Round.apply(3 * self.weight.t()))


class ReversedGradient(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Reverse.apply(self.layer(x), 0.3) @ self.weight


class FunctionOfParameter(Layer):
    def forward(self, x: Tensor) -> Tensor:
        product, sums, largest = Product.apply(
            self.layer(x), self.weight, {"scale": 0.5}, x.shape[0]
        )
        return (product + sums) * (1 + largest.unsqueeze(1))


class MaskedBackward(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Masked.apply(self.layer(x)) @ Masked.apply(self.weight)


class NoisyFunction(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(Noisy.apply(self.layer(x)), 0.5) @ self.weight


class FunctionWithoutGradient(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            target = Round.apply(y)
        return (y - target.sin()) @ self.weight


class CustomOperator(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return scaled_product(self.layer(x), self.weight)


class Hooks(Layer):
    """Hooks see the whole gradient of a value, the first of them first, whoever read it before."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        before = y.sin()
        y.register_hook(lambda grad: 3 * grad)
        y.register_hook(lambda grad: grad * torch.arange(1.0, D + 1, dtype=grad.dtype))
        first = y[:, 0]
        first.register_hook(lambda grad: -grad)
        return (before + y.cos()) @ self.weight + first.unsqueeze(1)


class HookAndWrite(Layer):
    """A hook belongs to the value that the tensor had when it was registered."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * 1.0
        y.register_hook(lambda grad: 2 * grad)
        y.mul_(x)
        return y @ self.weight


class HookOnWeight(Layer):
    def forward(self, x: Tensor) -> Tensor:
        doubled = 2 * self.weight
        doubled.register_hook(lambda grad: 5 * grad)
        return self.layer(x) @ doubled


class Checkpointed(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(lambda y: F.dropout(y.sin(), 0.5), self.layer(x), use_reentrant=False)
        return y @ self.weight


class ChannelsLast(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3))
        self.to(memory_format=torch.channels_last)


class Spectrum(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.fft(self.layer(x))
        return torch.view_as_real(y * y.conj() * 1j).flatten(1) + torch.fft.rfft(x).abs().sum(
            1, keepdim=True
        )


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _images(draw, k):
    return (draw.normal(k, 3, 6, 6).to(memory_format=torch.channels_last),)


_SIZES = (0, 1, 2, 3, 8)

CASES = (
    Case("rounded_values", RoundedValues, _vectors, sizes=_SIZES),
    Case("rounded_weight", RoundedWeight, _vectors, sizes=_SIZES),
    Case("reversed_gradient", ReversedGradient, _vectors, sizes=_SIZES),
    Case(
        "function_of_a_parameter", FunctionOfParameter, _vectors, sizes=(1, 2, 3, 8), fallback=True
    ),
    Case("backward_by_a_mask", MaskedBackward, _vectors, sizes=_SIZES),
    Case("noisy_function", NoisyFunction, _vectors, sizes=_SIZES, random=True),
    Case("function_without_gradient", FunctionWithoutGradient, _vectors, sizes=_SIZES),
    Case("custom_operator", CustomOperator, _vectors, sizes=_SIZES, fallback=True),
    Case("tensor_hooks", Hooks, _vectors, sizes=_SIZES),
    Case("hook_and_write", HookAndWrite, _vectors, sizes=_SIZES),
    Case("hook_on_a_weight", HookOnWeight, _vectors, sizes=_SIZES),
    Case("checkpointed", Checkpointed, _vectors, sizes=_SIZES, random=True),
    Case("channels_last", ChannelsLast, _images, sizes=_SIZES),
    Case(
        "transposed_images",
        ChannelsLast,
        lambda draw, k: (draw.normal(k, 3, 6, 6).mT,),
        sizes=_SIZES,
    ),
    Case(
        "expanded_batch",
        lambda: nn.Linear(D, 2),
        lambda draw, k: (draw.normal(k, 1).expand(k, D),),
        sizes=_SIZES,
    ),
    Case("spectrum", Spectrum, _vectors, sizes=(1, 2, 3, 8)),
)
