"""Errors whose message is all that a user has to read: shown without a traceback, they say what to do."""


class ConfigError(ValueError):
    """Something the user wrote cannot be honoured. The message names the place, the reason and a way out."""


class OffloadError(OSError):
    """A file that holds offloaded state cannot be read or written. The message names it, the reason and what to do."""


class TrainingError(RuntimeError):
    """The run cannot go on by itself, though nothing in its config is wrong. The message says what to do."""


class PermanentError(TrainingError):
    """The run cannot go on, and would fail the same way if it were started again. The message says what to change."""


class NotFiniteError(PermanentError):
    """A state with numbers that are not finite, which no checkpoint is made of. The message names its arrays."""
