"""The one error a user's own input raises: it is shown without a traceback, and says what to do instead."""


class ConfigError(ValueError):
    """Something the user wrote cannot be honoured. The message names the place, the reason and a way out."""
