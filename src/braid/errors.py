"""Every error that Braid raises on purpose, in one tree.

    BraidError
    ├── InputError                   what the caller passed cannot be used
    │   ├── EmptyInputError
    │   ├── UnknownStreamError
    │   ├── DirectionError
    │   ├── SamplingError
    │   └── TemplateError            segments that make no input, or not this one
    │       ├── UnknownSegmentError
    │       ├── FixedSegmentError
    │       └── RepeatedSegmentError
    ├── TopologyError                a topology that cannot be
    │   ├── UnknownKeyError
    │   ├── ForbiddenFlowError
    │   └── UnknownPresetError
    ├── TranscriptError              a transcript file that cannot be read
    │   ├── TranscriptVersionError
    │   └── TranscriptCorruptError
    ├── ModelError                   a model that cannot be loaded or served rightly
    │   ├── ModelNotFoundError
    │   ├── DownloadError
    │   ├── WeightsMissingError
    │   ├── WeightsCorruptError
    │   ├── UnsupportedModelError
    │   ├── TokenizerError
    │   ├── ChatTemplateError
    │   ├── CheckpointConflictError
    │   └── ContextOverflowError
    ├── CacheError                   the key-value pool
    │   ├── PoolFullError
    │   ├── PoolTooSmallError
    │   └── IntegrityError
    ├── SessionError                 a verb that the session's state does not allow
    │   ├── SessionClosedError
    │   ├── StreamClosedError
    │   ├── RegimeError
    │   ├── NothingToForceError
    │   ├── QueueFullError
    │   └── EditAfterConsumed
    ├── EngineError                  the engine as a whole
    │   ├── EngineBusyError
    │   └── EngineClosedError
    ├── ServerError                  what a server says to those who call it
    │   ├── UnauthenticatedError
    │   ├── ForbiddenError
    │   ├── NotFoundError
    │   ├── RateLimitError
    │   ├── TooLargeError
    │   └── ConnectionLostError
    ├── DataError                    training data that cannot be built, read or written
    │   ├── DataCorruptError
    │   └── JudgeError
    ├── TrainingError                a training run that cannot begin or go on
    │   ├── RecipeError
    │   └── DivergedError
    ├── WorkflowError                a graph of model calls that cannot be
    │   └── StageError
    └── UnsupportedByBackend

Each class has an `exit_code` for the command line and a `code` for the wire; both are stable. A message says
what is wrong and what would work. `assert` is for Braid's own mistakes, these are for everyone else's.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BraidError",
    "CacheError",
    "ChatTemplateError",
    "CheckpointConflictError",
    "ConnectionLostError",
    "ContextOverflowError",
    "DataCorruptError",
    "DataError",
    "DirectionError",
    "DivergedError",
    "DownloadError",
    "EditAfterConsumed",
    "EmptyInputError",
    "EngineBusyError",
    "EngineClosedError",
    "EngineError",
    "FixedSegmentError",
    "ForbiddenError",
    "ForbiddenFlowError",
    "InputError",
    "IntegrityError",
    "JudgeError",
    "ModelError",
    "ModelNotFoundError",
    "NotFoundError",
    "NothingToForceError",
    "PoolFullError",
    "PoolTooSmallError",
    "QueueFullError",
    "RateLimitError",
    "RecipeError",
    "RegimeError",
    "RepeatedSegmentError",
    "SamplingError",
    "ServerError",
    "SessionClosedError",
    "SessionError",
    "StageError",
    "StreamClosedError",
    "TemplateError",
    "TokenizerError",
    "TooLargeError",
    "TopologyError",
    "TrainingError",
    "TranscriptCorruptError",
    "TranscriptError",
    "TranscriptVersionError",
    "UnauthenticatedError",
    "UnknownKeyError",
    "UnknownPresetError",
    "UnknownSegmentError",
    "UnknownStreamError",
    "UnsupportedByBackend",
    "UnsupportedModelError",
    "WeightsCorruptError",
    "WeightsMissingError",
    "WorkflowError",
]


class BraidError(Exception):
    """Root of all errors that Braid raises on purpose."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "error"
    param: str | None = None
    """Which field of a request is meant, where one is."""

    @staticmethod
    def of(code: str, message: str) -> BraidError:
        """Return the error whose class has this wire code; of an unknown one, a plain `BraidError`.

        >>> BraidError.of("session.closed", "it is closed")
        SessionClosedError('it is closed')
        """
        kinds: list[type[BraidError]] = [BraidError]
        for kind in kinds:
            if kind.code == code:
                return kind(message)
            kinds += kind.__subclasses__()
        return BraidError(message)


class InputError(BraidError, ValueError):
    """What the caller passed cannot be used."""

    exit_code = 10
    code = "input"


class EmptyInputError(InputError):
    """An input stream was given no text where some is needed."""

    exit_code = 11
    code = "input.empty"


class UnknownStreamError(InputError):
    """A stream was named that the topology does not have."""

    exit_code = 12
    code = "input.unknown_stream"


class DirectionError(InputError):
    """A verb was used on a stream of the other direction."""

    exit_code = 13
    code = "input.direction"


class SamplingError(InputError):
    """Sampling parameters that contradict each other or lie out of range."""

    exit_code = 14
    code = "input.sampling"


class TemplateError(InputError):
    """A template that cannot be, or segments that do not fit it."""

    exit_code = 15
    code = "input.template"


class UnknownSegmentError(TemplateError):
    """A segment was named that the template does not have."""

    exit_code = 16
    code = "input.unknown_segment"


class FixedSegmentError(TemplateError):
    """A segment was to be changed whose text is the template's."""

    exit_code = 17
    code = "input.fixed_segment"


class RepeatedSegmentError(TemplateError):
    """Two segments have the same id, and contradict each other."""

    exit_code = 18
    code = "input.repeated_segment"


class TopologyError(BraidError, ValueError):
    """A topology that cannot be."""

    exit_code = 20
    code = "topology"


class UnknownKeyError(TopologyError):
    """A key that no topology has; the message names the nearest that exists."""

    exit_code = 21
    code = "topology.unknown_key"


class ForbiddenFlowError(TopologyError):
    """A flow that `forbid` names could happen; `path` is how."""

    exit_code = 22
    code = "topology.forbidden_flow"

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class UnknownPresetError(TopologyError):
    """Neither a preset nor a topology file has this name."""

    exit_code = 23
    code = "topology.unknown_preset"


class TranscriptError(BraidError, ValueError):
    """A transcript that cannot be read."""

    exit_code = 30
    code = "transcript"


class TranscriptVersionError(TranscriptError):
    """The transcript was written by another version of the format."""

    exit_code = 31
    code = "transcript.version"


class TranscriptCorruptError(TranscriptError):
    """A line before the last one is damaged."""

    exit_code = 32
    code = "transcript.corrupt"


class ModelError(BraidError):
    """A model that cannot be loaded, or cannot be served rightly."""

    exit_code = 40
    code = "model"


class ModelNotFoundError(ModelError):
    """No alias, folder, file or hub repository has this name."""

    exit_code = 41
    code = "model.not_found"


class DownloadError(ModelError):
    """The model could not be fetched, or what came is not what was asked for."""

    exit_code = 42
    code = "model.download"


class WeightsMissingError(ModelError):
    """A weight file that the checkpoint names is not there."""

    exit_code = 43
    code = "model.weights_missing"


class WeightsCorruptError(ModelError):
    """A weight file is truncated or damaged."""

    exit_code = 44
    code = "model.weights_corrupt"


class UnsupportedModelError(ModelError):
    """The architecture cannot be served exactly; the message says why and what would work."""

    exit_code = 45
    code = "model.unsupported"


class TokenizerError(ModelError):
    """The tokenizer is missing or cannot do what is asked."""

    exit_code = 46
    code = "model.tokenizer"


class ChatTemplateError(ModelError):
    """The checkpoint has no chat template, or one that cannot be taken apart."""

    exit_code = 47
    code = "model.chat_template"


class CheckpointConflictError(ModelError):
    """What the caller asks contradicts what the checkpoint was trained with."""

    exit_code = 48
    code = "model.conflict"


class ContextOverflowError(ModelError):
    """A position would lie beyond what the model was made for."""

    exit_code = 49
    code = "model.context"


class CacheError(BraidError):
    """The key-value pool."""

    exit_code = 50
    code = "cache"


class PoolFullError(CacheError):
    """The pool has too few free pages; nothing was changed."""

    exit_code = 51
    code = "cache.full"


class PoolTooSmallError(CacheError):
    """The pool could never hold what is asked, however empty."""

    exit_code = 52
    code = "cache.too_small"


class IntegrityError(CacheError):
    """The pool's books do not balance. This is a bug in Braid."""

    exit_code = 53
    code = "cache.integrity"


class SessionError(BraidError):
    """A verb that the session's state does not allow."""

    exit_code = 60
    code = "session"


class SessionClosedError(SessionError):
    """The session is closed."""

    exit_code = 61
    code = "session.closed"


class StreamClosedError(SessionError):
    """The stream is closed."""

    exit_code = 62
    code = "session.stream_closed"


class RegimeError(SessionError):
    """A verb of live input in a session with editable input, or the other way round."""

    exit_code = 63
    code = "session.regime"


class NothingToForceError(SessionError):
    """The stream has not been asked for a token yet, so there is no silence to overrule."""

    exit_code = 64
    code = "session.nothing_to_force"


class QueueFullError(SessionError):
    """More input waits to be read than the session may hold; nothing was taken."""

    exit_code = 65
    code = "session.queue_full"


class EditAfterConsumed(SessionError):
    """Input was to be changed that is committed, or that the model has answered already."""

    exit_code = 66
    code = "session.edit_after_consumed"


class EngineError(BraidError):
    """The engine as a whole."""

    exit_code = 80
    code = "engine"


class EngineBusyError(EngineError):
    """The engine serves as many sessions as it may; `retry_after_s` is when it is worth another try."""

    exit_code = 81
    code = "engine.busy"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineClosedError(EngineError):
    """The engine is shut down, or is shutting down."""

    exit_code = 82
    code = "engine.closed"


class ServerError(BraidError):
    """What a server says to those who call it."""

    exit_code = 90
    code = "server"


class UnauthenticatedError(ServerError):
    """No API key was given where one is needed, or none that is known."""

    exit_code = 91
    code = "server.unauthenticated"


class ForbiddenError(ServerError):
    """Who is asking is known, and may not do this."""

    exit_code = 92
    code = "server.forbidden"


class NotFoundError(ServerError):
    """Nothing has this name, or nothing that the caller may see."""

    exit_code = 93
    code = "server.not_found"


class RateLimitError(ServerError):
    """More was asked than the caller's key allows; `retry_after_s` is when it is worth another try."""

    exit_code = 94
    code = "server.rate_limit"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLargeError(ServerError):
    """A request is larger than the server takes."""

    exit_code = 95
    code = "server.too_large"


class ConnectionLostError(ServerError):
    """The server cannot be reached, and trying again has not helped."""

    exit_code = 96
    code = "server.connection_lost"


class DataError(BraidError, ValueError):
    """Training data that cannot be built, read or written."""

    exit_code = 100
    code = "data"


class DataCorruptError(DataError):
    """A file of training data is damaged, or is not what it was taken for; the message names the place."""

    exit_code = 101
    code = "data.corrupt"


class JudgeError(DataError):
    """The judge cannot be reached, or does not answer as it was asked to."""

    exit_code = 102
    code = "data.judge"


class TrainingError(BraidError):
    """A training run cannot begin, or cannot go on; what it has saved is intact."""

    exit_code = 105
    code = "training"


class RecipeError(TrainingError, ValueError):
    """A recipe cannot be read, or asks for what cannot be."""

    exit_code = 106
    code = "training.recipe"


class DivergedError(TrainingError):
    """The loss, or a weight, is not finite any more."""

    exit_code = 107
    code = "training.diverged"


class WorkflowError(BraidError, ValueError):
    """A workflow that cannot be: a cycle, a name that nothing has, a template that cannot be read."""

    exit_code = 110
    code = "workflow"


class StageError(WorkflowError):
    """A stage of a workflow has failed; `stage` is its name, and the cause is chained."""

    exit_code = 111
    code = "workflow.stage"

    def __init__(self, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class UnsupportedByBackend(BraidError):
    """The backend cannot do this; `capabilities()` says what it can."""

    exit_code = 70
    code = "backend.unsupported"
