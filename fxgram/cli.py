"""The `fxgram` command: its sub-commands, the extra it needs, and how it reports user errors."""

import importlib.metadata
import importlib.util
import sys

EXTRA_MODULES = ("matplotlib", "qpsolvers", "quadprog", "rich", "sklearn", "torchjd", "typer")


def main() -> None:
    """Run the `fxgram` command."""
    missing = [name for name in EXTRA_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"fxgram: the command line needs {', '.join(missing)}; install fxgram with its extra "
            "`demo`, in a clone: pip install -e '.[demo]'"
        )
    run(build_app(), prog="fxgram")


def build_app():
    """Return the typer application; import typer only here, it belongs to the extra `demo`."""
    import typer

    from fxgram.demo.command import demo
    from fxgram.orders import orders

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.callback(invoke_without_command=True)
    def options(context: typer.Context, version: bool = False) -> None:
        """Compile a PyTorch model into one graph that returns its losses and their Gramian."""
        if version:
            print(f"fxgram {importlib.metadata.version('fxgram')}")
        elif context.invoked_subcommand is None:
            print(context.get_help())

    app.command()(demo)
    app.command()(orders)
    return app


def run(app, prog: str) -> None:
    """Run a typer application and exit.

    What the user can fix (a bad option, say) gives one line on stderr and exit code 2.
    """
    import typer

    try:
        code = app(prog_name=prog, standalone_mode=False)
    except typer.TyperException as error:
        print(f"{prog}: {' '.join(error.format_message().split())}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(f"{prog}: aborted")
    sys.exit(code if isinstance(code, int) else 0)
