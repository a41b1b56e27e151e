"""`python -m fxgram.rules.table`: the table of operators for README.md."""

from fxgram.rules.registry import registered
from passes.spellings import spelled_out


def markdown_table() -> str:
    """Operators with a rule of their own, and the arguments that may be parameters."""
    rows: dict[str, dict[str, None]] = {}
    for op, argument in registered():
        rows.setdefault(op._opname.removeprefix("_native_"), {})[f"`{argument}`"] = None
    lines = ["| operator | parameter as |", "|---|---|"]
    lines += [f"| `{name}` | {', '.join(arguments)} |" for name, arguments in sorted(rows.items())]
    names = ", ".join(f"`{name}`" for name in sorted({op._opname for op in spelled_out()}))
    return "\n".join(lines) + f"\n\nSpelled out by these where a parameter enters: {names}."


if __name__ == "__main__":
    print(markdown_table())
