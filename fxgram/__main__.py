"""`python -m fxgram`: the same as the `fxgram` command."""

from fxgram.cli import main

main()
