"""The error that users of models read, and a check that raises it."""


class ModelError(ValueError):
    """A model, its configuration or its directory is wrong; one line says how."""


def check_count(name: str, value: object) -> None:
    """Refuses what is not a whole number of at least 1.

    Raises:
        ModelError: naming `name` and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name} is {value!r}; it must be a whole number of at least 1")
