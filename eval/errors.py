"""The exception for requests that cannot be answered."""


class RequestError(ValueError):
    """A request that cannot be answered; the message is one line that says why."""
