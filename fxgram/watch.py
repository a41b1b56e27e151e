"""Watch a forward while it is captured, for what a graph of operators cannot hold."""

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from fxgram.constants import UNKNOWN, Constants
from fxgram.errors import CaptureError

_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}


class Watch(TorchFunctionMode):
    """Raise, by name, what would be lost: each item of §4 of the design that export drops.

    Custom `autograd.Function`s (export keeps their forward alone), tensor hooks (no node), foreign
    tensors that require grad (become constants), derivatives inside of the objective.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        _refuse_backward_hooks(model)
        self._constants = Constants()

    def __enter__(self) -> "Watch":
        self._apply = torch.autograd.Function.__dict__["apply"]
        original = torch.autograd.Function.apply.__func__

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            if cls.__module__.split(".")[0] == "torch":
                return original(cls, *args, **kwargs)
            raise CaptureError(
                f"The forward calls the custom autograd.Function `{cls.__qualname__}`, whose "
                "backward a captured graph does not hold. Write it with differentiable operators; "
                "a straight-through estimator, say, as `x + (f(x) - x).detach()`."
            )

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.autograd.Function.apply = self._apply  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _HOOKS:
            raise CaptureError(
                f"The forward calls `{name}` on a tensor; a captured graph does not hold hooks. "
                "Register hooks on parameters outside of the forward, or write the change of the "
                "gradient as an operator."
            )
        if func in (torch.autograd.grad, torch.Tensor.backward, torch.autograd.backward):
            raise CaptureError(
                "The objective differentiates inside (autograd.grad or backward); derivatives "
                "inside of the objective are not supported yet."
            )
        if name == "__get__":
            return func(*args, **kwargs)
        for leaf in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self._refuse_foreign(leaf)
        known = self._constants.read(func, args, kwargs)
        if known is not UNKNOWN:
            return known
        result = func(*args, **kwargs)
        self._constants.follow(func, args, kwargs, result)
        return result

    def _refuse_foreign(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(
            tensor
        ):
            return
        if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_leaf:
            raise CaptureError(
                f"The objective uses a tensor of shape {list(tensor.shape)} that requires grad and "
                "belongs neither to `model` nor to the batch. Make it part of the model (put both "
                "modules into one nn.ModuleDict, say), pass it in the batch, or detach it."
            )


def _refuse_backward_hooks(model: nn.Module) -> None:
    import torch.nn.modules.module as registry

    if registry._global_backward_hooks or registry._global_backward_pre_hooks:
        raise CaptureError(
            "Global module backward hooks are set; fxgram cannot keep them: remove them."
        )
    hooked = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    ]
    if hooked:
        raise CaptureError(
            f"Modules with backward hooks: {', '.join(hooked)}. fxgram computes gradients without "
            "calling them: remove the hooks, or put them on parameters."
        )
