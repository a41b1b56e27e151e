"""Why a contender has no figure, in one line."""

from benchmarks.checking import WrongAnswer


def one_line(error: BaseException) -> str:
    """Return `wrong: ...` or `failed: ...`, what comes before the colon being a table's cell."""
    if isinstance(error, WrongAnswer):
        return f"wrong: {error}"
    text = str(error).strip()
    first = text.splitlines()[0] if text else "no message"
    return f"failed: {type(error).__name__}: {first}"
