"""The one error of this room: a run that cannot start, go on or be saved."""


class RunError(ValueError):
    """Bad input or a run gone wrong, told in one line: what was seen, and how to mend it."""
