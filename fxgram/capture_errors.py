"""Say in the user's words why a forward could not be captured."""

import re
import traceback

from fxgram.errors import CaptureError
from fxgram.watch import is_own, line_of

_SIZES = (
    "Write sizes as len(x) or x.shape[0] rather than as numbers, and avoid loops over the samples"
)


# Files of PyTorch whose operators take branches or bodies.
_CONTROL_FLOW = (
    "_higher_order_ops/cond.py", "_higher_order_ops/while_loop.py", "_higher_order_ops/scan.py",
    "_higher_order_ops/associative_scan.py", "_higher_order_ops/map.py", "flex_attention.py",
)  # fmt: skip


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return traceback.extract_tb(error.__traceback__)


def user_line(error: BaseException) -> str | None:
    """`file:line: code` of the innermost frame of the user's own code in a traceback."""
    own = [f for f in _frames(error) if is_own(f.filename)]
    return line_of(own[-1]) if own else None


def control_flow(at: str) -> CaptureError:
    """The error for operators that take branches or bodies."""
    return CaptureError(
        f"Control flow as an operator (scan, while_loop, flex_attention, cond with random "
        f"numbers or state in its branches){at} is not supported: its bodies hide operators. "
        "Compute both branches and choose with torch.where, write loops in Python, and use "
        "F.scaled_dot_product_attention."
    )


def explained(
    error: Exception, loop: str | None, stand_ins: int | None, samples: int = 0
) -> CaptureError:
    """The error to raise for what export objects to.

    `loop` is the last line that took samples one by one; `stand_ins` the number of samples that the
    capture pretended to have instead of `samples`.
    """
    text, line = str(error), user_line(error)
    first = re.sub(r"\bs\d+\b", "K", text.splitlines()[0]).rstrip(".") if text else ""
    at = f" at {line}" if line else ""
    if "specialized it to be a constant" in text or "Constraints violated" in text:
        seen = f" (the last line that took them one by one is {loop})" if loop else at
        reasons = " ".join(text.splitlines()[1:2]).strip(" -")
        return CaptureError(
            "The model or objective fixes the batch size, or behaves differently for different "
            f"batch sizes. {_SIZES}{seen} and `if` on the batch size. PyTorch says: {reasons}"
        )
    if "DataDependent" in type(error).__name__ or "data-dependent" in text:
        return CaptureError(
            f"Control flow or a size depends on the values of a tensor{at}. Use torch.where or a "
            f"mask instead of `if`, `.item()` and boolean indexing. PyTorch says: {first}"
        )
    if "fake tensor in the exported program constant" in text:
        return CaptureError(
            f"The forward reads the data of a tensor behind autograd's back{at}, with `.data` for "
            "example: use .detach() instead, and operators in place under torch.no_grad() to write."
        )
    if any(frame.filename.endswith(_CONTROL_FLOW) for frame in _frames(error)):
        return control_flow(at)
    if "sparse" in text.lower() and isinstance(error, NotImplementedError | RuntimeError):
        return CaptureError(
            f"Sparse tensors are not supported{at}: use dense ones or a mask. PyTorch says: {first}"
        )
    if ".numpy() is not supported" in text:
        return CaptureError(
            f"The forward leaves PyTorch{at}: a graph of operators cannot follow. Make that code a "
            "custom operator with torch.library.custom_op, register_fake and register_autograd."
        )
    message = f"The model or objective could not be captured{at}: {type(error).__name__}: {first}"
    if isinstance(error, TypeError) and "argument" in text:
        message += ". The objective is called as objective(model, *batch, **kwargs)."
    if stand_ins is not None and re.search(rf"\b({stand_ins}|{samples})\b", text):
        message += (
            ". The batch size is a symbol while the forward is captured (with a stand-in of "
            f"{stand_ins} samples), so a size written as a number does not fit. {_SIZES}."
        )
    return CaptureError(message)
