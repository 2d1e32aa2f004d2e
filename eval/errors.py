"""The one exception that a user of the evals is meant to read."""


class RequestError(ValueError):
    """Something was asked that cannot be answered; the message is one line saying why."""
