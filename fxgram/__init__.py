"""fxgram: the Gramian of per-loss gradients, compiled from the graph of any PyTorch model."""

import pathlib

import passes as _passes

_home = pathlib.Path(__file__).resolve().parent.parent
if pathlib.Path(_passes.__file__ or "").resolve().parent.parent != _home:
    raise ImportError(
        f"fxgram needs its own package `passes`, but `import passes` found {_passes.__file__}. "
        "Rename or remove that module, or run from another directory."
    )

from fxgram.check_rule import check_rule as check_rule  # noqa: E402
from fxgram.errors import CaptureError as CaptureError  # noqa: E402
from fxgram.errors import CoupledSamples as CoupledSamples  # noqa: E402
from fxgram.errors import FxgramError as FxgramError  # noqa: E402
from fxgram.errors import InvalidArgument as InvalidArgument  # noqa: E402
from fxgram.errors import InvalidBatch as InvalidBatch  # noqa: E402
from fxgram.errors import InvalidLosses as InvalidLosses  # noqa: E402
from fxgram.errors import NoTrainableParameter as NoTrainableParameter  # noqa: E402
from fxgram.errors import UncoveredUse as UncoveredUse  # noqa: E402
from fxgram.errors import UnfaithfulCapture as UnfaithfulCapture  # noqa: E402
from fxgram.errors import UnsupportedBackward as UnsupportedBackward  # noqa: E402
from fxgram.errors import WrongRule as WrongRule  # noqa: E402
from fxgram.rules import rule as rule  # noqa: E402
from fxgram.step import GramianStep as GramianStep  # noqa: E402
from fxgram.step import compile as compile  # noqa: E402
