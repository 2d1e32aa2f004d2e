"""The one exception that a user of models is meant to read."""


class ModelError(ValueError):
    """A model, its configuration or its directory is not as it should be; one line says how."""
