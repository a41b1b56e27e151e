"""Watch a forward while it is captured, for what a graph of operators cannot hold."""

import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.fx.traceback
from torch import nn
from torch._C import _functorch as functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, has_proxy_slot
from torch.nn.modules import module as module_registry
from torch.overrides import TorchFunctionMode

from fxgram.calls import Calls
from fxgram.constants import UNKNOWN, Constants
from fxgram.errors import CaptureError
from fxgram.returned import Aux
from fxgram.snapshot import objects_named
from fxgram.splits import by_sizes

_HOOKS = {"register_post_accumulate_grad_hook", "retain_grad"}
_BACKWARDS = {torch.Tensor.backward, torch.autograd.backward}
_LOOPS = {torch.Tensor.__iter__, torch.Tensor.unbind, torch.unbind, torch.Tensor.tolist}


class DifferentiatesInside(Exception):
    """The objective differentiates inside: export is the wrong tracer."""


class Watch(TorchFunctionMode):
    """Record or raise, by name, what export drops: each item of §4 of the design.

    Custom `autograd.Function`s (export keeps their forward alone) and tensor hooks (no node) are
    recorded as `calls`; foreign tensors that require grad (would become constants) and hooks on
    leaves are refused. Also gives every node the user's own lines as its stack trace, and finds
    out whether the objective differentiates inside.
    """

    def __init__(self, model: nn.Module, objective: Callable | None):
        super().__init__()
        _refuse_backward_hooks(model)
        self.calls = Calls()
        self._constants = Constants()
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        self._objective = objective
        self.differentiates = False  # `autograd.grad` or torch.func was seen inside
        self.loop: str | None = None  # the last line that asked for the samples one by one
        self.plain_after: dict[str, Any] = {}  # attributes as the forward left them
        self.aux: Aux | None = None  # what the forward returned besides the losses

    def __enter__(self) -> "Watch":
        self.calls.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.calls.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # branches of torch.cond, which become sub-graphs
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _HOOKS:
            raise CaptureError(
                f"The forward calls `{name}` on a tensor, whose `.grad` a compiled step never "
                "fills there. Use register_hook, which may change the gradient, or register hooks "
                "on parameters outside of the forward."
            )
        if func in _BACKWARDS:
            raise CaptureError(
                "The objective calls backward, which would add to `.grad` in every step: use "
                "torch.autograd.grad(..., create_graph=True)."
            )
        if name == "detach_" and self.differentiates:
            raise CaptureError(
                "The objective calls `detach_`, which leaves no trace where it also differentiates "
                "inside: use y = y.detach()."
            )
        inside = func is torch.autograd.grad or functorch.maybe_current_level() is not None
        if inside and not self.differentiates:
            self.differentiates = True
            raise DifferentiatesInside
        if name == "_pack_padded_sequence":
            raise CaptureError(
                f"The forward packs sequences ({_current_line()}), whose sizes depend on the "
                "lengths. Run the layer on the padded batch and mask its outputs: they do not "
                "depend on the padding behind them. The last output of each sequence is "
                "outputs[torch.arange(len(x)), lengths - 1]; a backward direction takes inputs "
                "and outputs reversed by such an index."
            )
        if name == "__get__":
            return func(*args, **kwargs)
        for leaf in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self._refuse_foreign(leaf)
        known = self._constants.read(func, args, kwargs)
        if known is not UNKNOWN:
            return known
        frames = own_frames()
        if frames:
            torch.fx.traceback.set_stack_trace(traceback.format_list(frames))
            if func in _LOOPS:
                self.loop = line_of(frames[-1])
        func, args, kwargs = by_sizes(func, args, kwargs)
        result = func(*args, **kwargs)
        if name == "register_hook":
            self.calls.hook(args[0], args[1] if len(args) > 1 else kwargs["hook"])
        self._constants.follow(func, args, kwargs, result)
        return result

    def _refuse_foreign(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, FakeTensor) or functorch.is_functorch_wrapped_tensor(tensor):
            return
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            return
        tracer = get_proxy_mode()
        if tracer is not None and has_proxy_slot(tensor, tracer.tracer):
            return  # made by the objective, or given to it
        if id(tensor) in self._parameters:
            name = self._parameters[id(tensor)]
            raise CaptureError(
                f"The objective uses the parameter `{name}` of the model through a reference of "
                f"its own. Read it from the argument instead: model.{name}."
            )
        raise CaptureError(
            f"The objective uses {self._name(tensor)} of shape {list(tensor.shape)}, which "
            "requires grad and belongs neither to `model` nor to the batch. Make it part of the "
            "model (put both modules into one nn.ModuleDict, say), pass it in the batch, or "
            "detach it."
        )

    def _name(self, tensor: torch.Tensor) -> str:
        """What the objective calls a tensor: `scale`, or `other.weight` of a module."""
        for name, value in objects_named(self._objective):
            if value is tensor:
                return f"the tensor `{name}`"
            if isinstance(value, nn.Module):
                for inner, parameter in value.named_parameters():
                    if parameter is tensor:
                        return f"the parameter `{name}.{inner}`"
        return "a tensor"


def own_frames() -> list[traceback.FrameSummary]:
    """Frames of the user's code that are running now, the innermost last."""
    frames = []
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.endswith("fxgram/wrapper.py"):
            break
        if is_own(path):
            frames.append(traceback.FrameSummary(path, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]


def _current_line() -> str:
    frames = own_frames()
    return line_of(frames[-1]) if frames else "in code of a library"


def is_own(path: str) -> bool:
    """Whether a file is the user's, and neither PyTorch's nor fxgram's."""
    path = path.replace("\\", "/")
    return not path.startswith("<") and not any(part in path for part in _NOT_OWN)


_ROOT = pathlib.Path(__file__).resolve().parent.parent.as_posix()
_NOT_OWN = ("/torch/", f"{_ROOT}/fxgram/", f"{_ROOT}/passes/")


def line_of(frame: traceback.FrameSummary) -> str:
    """`model.py:12: self.norm(x)`."""
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}: {frame.line}"


def _refuse_backward_hooks(model: nn.Module) -> None:
    if module_registry._global_backward_hooks or module_registry._global_backward_pre_hooks:
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
