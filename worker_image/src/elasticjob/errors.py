"""The errors a user of the runtime can meet. Each message names what is wrong and what to do about it."""

from __future__ import annotations


class ElasticJobError(Exception):
    """The base of every error that is meant for the user of the runtime."""


class ConfigurationError(ElasticJobError, ValueError):
    """A variable or an argument has a value that cannot work."""


class BackendUnavailableError(ElasticJobError, RuntimeError):
    """The backend that was asked for by name cannot be used here. The message says which check failed."""


class CollectiveFailedError(ElasticJobError, RuntimeError):
    """A collective ended early, most often because a member of the world went away."""


class WorldLostError(ElasticJobError, RuntimeError):
    """A member of this world is gone. A session catches it at the end of the step and goes on in the next world."""


class CollectiveMismatchError(ElasticJobError, RuntimeError):
    """The ranks of a group did not call the same thing. The message names the ranks and their calls."""


class BufferTouchedError(ElasticJobError, RuntimeError):
    """A buffer was changed while a transfer still used it."""


class CheckpointFailedError(ElasticJobError, RuntimeError):
    """A checkpoint could not be written or read."""
