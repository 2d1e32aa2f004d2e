"""What the tests of other people's tools share: pages of the docs, and where files lie."""

import re
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


def block_of(page: str, word: str) -> str:
    """The block of Python in a page of the docs that has a word in it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (found,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in b]
    return found
