"""Which modules can be compiled, and what is inside of wrappers."""

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fxgram.errors import InvalidArgument


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of torch.compile, DataParallel or DistributedDataParallel.

    fxgram captures the module itself: a compiled forward hides its operators, and the reducer of
    DistributedDataParallel would average gradients of which it sees no backward.
    """
    while True:
        if isinstance(model, OptimizedModule):
            model = model._orig_mod
        elif isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model


def refuse_model(model: nn.Module) -> None:
    """Raise for scripted modules, and for parameters without values.

    Raises: InvalidArgument naming them.
    """
    scripted = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    if scripted:
        raise InvalidArgument(
            f"Modules compiled by torch.jit cannot be captured: {', '.join(scripted[:5])}. Build "
            "the model from the original Python modules and load the weights: "
            "model.load_state_dict(scripted.state_dict())."
        )
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [n for n, t in tensors if isinstance(t, UninitializedParameter | UninitializedBuffer)]
    if lazy:
        raise InvalidArgument(
            f"Lazy modules are not initialised yet ({', '.join(lazy[:5])}): run the model once on "
            "a batch before the step."
        )
    inference = [n for n, t in tensors if t.is_inference()]
    if inference:
        raise InvalidArgument(
            "The model was made under torch.inference_mode(), so autograd cannot use its tensors: "
            f"{', '.join(inference[:5])}. Make it outside."
        )
    meta = [n for n, t in tensors if t.is_meta]
    if meta:
        raise InvalidArgument(
            f"These tensors are on the meta device and have no values: {', '.join(meta[:5])}. "
            "Use model.to_empty(device=...) and load them."
        )
