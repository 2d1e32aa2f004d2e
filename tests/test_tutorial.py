"""The tutorial's cells run one after the other, at toy size; its outputs are kept.

python -m tests.test_tutorial     # runs it as it is written, and keeps what it prints
"""

import ast
import builtins
import contextlib
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.ipynb"
SMALL = {
    'STORIES, VOCABULARY, STEPS = "toy:8000", 4096, 250': (
        'STORIES, VOCABULARY, STEPS = "toy:600", 400, 2'
    ),
    '"demo",': '"demo", "--model.d_model=16", "--model.n_layers=1",',
    "adam.steps=100": "adam.steps=2",
    "stories=100": "stories=2",
    "tokens=4096": "tokens=400",
    "there was a little dog.": "there was",
}


def run(source: str, scope: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell; what it prints and what its last line shows, as outputs of a notebook."""
    printed, outputs = io.StringIO(), []

    def display(result: Any) -> None:
        html = result._repr_html_()
        data = {"text/html": html.splitlines(True), "text/plain": str(result).splitlines(True)}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})

    scope["display"] = display
    builtins.display = display  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(ast.parse(source), "cell", "exec"), scope)
    finally:
        del builtins.display  # pyright: ignore[reportAttributeAccessIssue]
    if text := printed.getvalue():
        stream = {"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}
        outputs.insert(0, stream)
    return outputs


@pytest.mark.slow
def test_the_tutorial_runs_and_keeps_its_outputs() -> None:
    notebook, scope, replaced = json.loads(PAGE.read_text(encoding="utf-8")), {}, set()
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        for text, small in SMALL.items():
            replaced |= {text} if text in source else set()
            source = source.replace(text, small)
        made = [output["output_type"] for output in run(source, scope)]
        kept = [output["output_type"] for output in cell["outputs"]]
        assert made == kept, source
    assert replaced == SMALL.keys()
    text = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|home|work|root)/", text), "a path of a machine"


def main() -> None:
    """Writes the outputs of the tutorial as it is written."""
    notebook, scope = json.loads(PAGE.read_text(encoding="utf-8")), {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, start=1):
        cell["outputs"] = run("".join(cell["source"]), scope)
        cell["execution_count"] = count
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    place = re.escape(tempfile.gettempdir()) + r"/remnant-\w+"
    PAGE.write_text(re.sub(place, "tutorial", text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
