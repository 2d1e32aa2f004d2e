"""The one error of this room: bad stories, a bad tokenizer file, a bad data directory."""


class CorpusError(ValueError):
    """Bad input, told in one line: what was given, what is allowed, how to mend it."""
