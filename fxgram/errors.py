"""One exception class for each situation that a user can fix."""


class FxgramError(Exception):
    """Base class of everything that fxgram raises on purpose."""


class InvalidArgument(FxgramError, ValueError):
    """An argument of `fxgram.compile` or of a step cannot be used; the message names it."""


class InvalidBatch(FxgramError, ValueError):
    """The tensors of a batch do not fit together, or not the claimed `batch_dim`."""


class InvalidLosses(FxgramError, ValueError):
    """The objective returned something that is not one floating-point loss per sample."""


class NoTrainableParameter(FxgramError, ValueError):
    """No parameter with `requires_grad=True` is reached by the losses."""


class CaptureError(FxgramError, RuntimeError):
    """The model or the objective could not be captured as a graph; the cause is chained."""


class UnfaithfulCapture(CaptureError):
    """The compiled program and the eager model disagree on losses or gradients."""


class CoupledSamples(FxgramError, ValueError):
    """The loss of one sample depends on another sample, although `batch_dim` claims otherwise."""


class UncoveredUse(FxgramError, NotImplementedError):
    """A use of a parameter is covered neither by a rule nor by the fallback."""


class WrongRule(FxgramError, ValueError):
    """A rule disagrees with the backward of its operator, or does not apply to the example."""


class UnsupportedBackward(FxgramError, RuntimeError):
    """Backward through the losses was asked for something it cannot do, `create_graph=True` say."""
