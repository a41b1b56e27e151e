"""The folder the demo writes to, and the file of all its figures."""

import dataclasses
import importlib.metadata
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fxgram.demo.training import Point

PACKAGES = ("fxgram", "torch", "torchjd", "scikit-learn")


def writable_folder(folder: Path) -> Path:
    """Create the folder if need be and try it with an empty file.

    Raises:
        OSError: The folder cannot be created or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the figures depend on."""
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **installed}


def write_figures(
    path: Path, runs: Mapping[str, Sequence[Point]], other: Mapping[str, Any]
) -> None:
    """Write every figure that the demo printed or drew as JSON."""
    curves = {name: [dataclasses.asdict(p) for p in points] for name, points in runs.items()}
    figures = {**other, "curves": curves, "versions": versions()}
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
