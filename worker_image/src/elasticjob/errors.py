"""The errors for users of the runtime. Each message names the problem and the remedy."""

from __future__ import annotations


class ElasticJobError(Exception):
    """The base class of all errors for users of the runtime."""


class ConfigurationError(ElasticJobError, ValueError):
    """A variable or an argument has an invalid value."""


class BackendUnavailableError(ElasticJobError, RuntimeError):
    """The backend requested by name cannot be used here. The message names the failed check."""


class CollectiveFailedError(ElasticJobError, RuntimeError):
    """A collective failed, most often because the world lost a member; or the world could not be joined in time."""


class WorldLostError(ElasticJobError, RuntimeError):
    """The world lost a member. A session catches this at the end of the step and continues in the next world."""


class StepsDifferError(ElasticJobError):
    """The ranks of a session do not make the same steps: one has skipped a step, or has ended, and others have not."""


class ReplicasDifferError(ElasticJobError, RuntimeError):
    """The ranks of a session have different parameters again and again, and nobody knows which of them are right."""


class CollectiveMismatchError(ElasticJobError, RuntimeError):
    """The ranks of a group made different calls. The message names the ranks and their calls."""


class BufferTouchedError(ElasticJobError, RuntimeError):
    """A buffer was changed while a transfer still used it."""


class CheckpointFailedError(ElasticJobError, RuntimeError):
    """A checkpoint could not be written or read."""
