"""What is asked: models, and the text that they are asked about."""

from contextvars import ContextVar

TRUST_CODE: ContextVar[bool] = ContextVar("trust_code", default=False)
"""Whether whoever runs a command lets model directories name mixers outside this project."""
