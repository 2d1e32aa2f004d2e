"""The commands of docs/lenses.md are run as they stand, on a small model; all lenses are listed."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.lenses.catalogue import LENSES

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "lenses.md").read_text("utf-8")
COMMANDS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).splitlines()


def test_every_lens_is_listed_in_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(LENSES)


def test_its_commands_work(
    model_directory: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (0, 1000):
        made = model_directory("flat", step=step)
        place = tmp_path / "runs" / "flat" / "models"
        place.mkdir(parents=True, exist_ok=True)
        made.rename(place / made.name)
    monkeypatch.chdir(tmp_path)
    commands = [line for line in COMMANDS if line.startswith("python -m eval ")]
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command)[3:]
        if words[0] == "lens":  # less of everything than its defaults
            words += ["--lens", "logit", "path", "--length", "12", "--tokens", "400"]
        if words[0] == "retrieval":
            words += ["--corpus", "toy:900", "--fit-steps", "2"]
        assert main(words) == 0
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    assert {p.suffix for p in (tmp_path / "figures").iterdir()} == {".svg"}
