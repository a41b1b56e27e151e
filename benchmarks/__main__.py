"""`python -m benchmarks`: needs the extra `bench`."""

from benchmarks.commands import app
from fxgram.cli import run

run(app, prog="benchmarks")
