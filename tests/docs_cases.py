"""The commands of the documents: where they stand, and how they are run at toy size.

A command is expanded by bash as it is written, so that globs, quotes and comments count, and is
given to the main function of its module. Files, flags and order stay as they are. What is made
small is written down here, in three tables:

* `INPUTS`: what a command reads that is too large, or not on this machine;
* `SMALL`: flags that are added at the end of a command, where they replace its sizes; those of
  the first entry that a command begins with;
* `NOT_RUN`: commands that cannot run in a test, each with the reason; their words are parsed, as
  are those of pages that are not in `RUN`.

A trained run is the toy's, but its models stand at the steps at which the command as written would
have saved them.
"""

import argparse
import contextlib
import functools
import inspect
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from eval.__main__ import command_function
from eval.commands.flags import read_arguments
from tests.conftest import VOCAB
from tokenizer.toy import toy_stories

ROOT = Path(__file__).resolve().parent.parent
RUN = ("README.md", "docs/training.md", "docs/inversion.md", "docs/python-api.md")
"""Pages whose commands are run: the first, from which the others go on, and the most used."""
INPUTS = {"hub:roneneldan/TinyStories": "tinystories", "toy": "toy:600"}
STEPS = 2
MODEL = f"""--model.vocab_size {VOCAB} --model.d_model 16 --model.n_layers 2
    --model.context 48 --model.d_ff 16 --batch.size 2 --batch.micro 2
    --trainer.max_steps {STEPS} --schedule.warmup_steps 1"""
SMALL = {
    "tokenizer train": f"--vocab-size {VOCAB}",
    "train fit": f"""{MODEL} --validate_tokens 96 --save_steps [] --save_every null
        --wandb disabled""",
    "train plan": MODEL,
    "eval invert remnant:": "--layers last --solvers propose adam --set adam.steps=2",
    "eval invert": """--layers last --solvers propose adam alternating
        --set adam.steps=2 alternating.starts=1 alternating.rounds=1 alternating.budget=1""",
}
FEW = {"eval loss": "--stories 4", "eval invert": "--count 1 --length 5"}
"""The same where no text is given."""
NOT_RUN = {
    r"make |source \.venv": "sets up a virtual environment",
    r"--minutes": "takes minutes; tests/train/test_lightning.py has it, with a clock of its own",
    r"--trainer\.devices": "needs several devices",
    r"--wandb offline": "starts W&B's process; tests/eval/views/test_tracking.py has it",
    r"fineweb-edu": "needs the network",
    r"eval explore": "serves until it is interrupted; tests/eval/explore/test_explore.py has it",
}
NAMED = "".join((ROOT / page).read_text(encoding="utf-8") for page in RUN)
"""The pages that name models by their steps."""
SHELL = re.compile(r"code=|if |exit |cd |export HF_")
"""Lines of a script that are no commands of ours."""


@dataclass(frozen=True)
class Command:
    """A command of a page: the line that it begins at, and its text on one line."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def why_not(self) -> str:
        """Why it is parsed and not run; empty where it is run."""
        if self.page not in RUN:
            return "of a page that is not run"
        reasons = (why for pattern, why in NOT_RUN.items() if re.search(pattern, self.text))
        return next(reasons, "")


class Parsed(BaseException):
    """A command line was accepted; nothing is to be done."""


def blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Every fenced block: the number of its first line, its language, its lines."""
    language, start, inside = "", 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("```"):
            inside.append(line)
        elif start:
            yield start, language, inside
            start = 0
        else:
            language, start, inside = line.strip().strip("`"), number + 1, []


def commands(page: str, text: str) -> list[Command]:
    """The commands of a page's shell blocks, in order."""
    found = []
    for start, language, lines in blocks(text):
        if language not in ("sh", "bash"):
            continue
        whole, first = "", start
        for number, line in enumerate(lines, start=start):
            first = first if whole else number
            whole += line.strip().removesuffix("\\")
            if not line.endswith("\\"):
                if whole and not whole.startswith("#") and not SHELL.match(whole):
                    found.append(Command(page, first, " ".join(whole.split())))
                whole = ""
    return found


def expanded(text: str, where: Path, must_match: bool) -> list[str]:
    """The words that bash makes of a command.

    Raises:
        AssertionError: a glob that matches nothing, where it must.
    """
    option = "shopt -s failglob; " if must_match else ""
    run = subprocess.run(
        ["bash", "-c", f"{option}printf '%s\\0' {text}"], cwd=where, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split("\0")[:-1]


def check(command: Command, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parses a command's words as they are written; nothing is run.

    Raises:
        AssertionError: no such file or target, or words that its parser does not take.
    """
    words = expanded(command.text, where, must_match=False)
    if words[0] in ("torchrun", "srun"):
        words = ["python", *(word for word in words[words.index("-m") :] if word != "--")]
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = [word for word in words[1:] if "=" not in word]
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    elif words[0].startswith("scripts/"):
        assert subprocess.run(["bash", "-n", ROOT / words[0]]).returncode == 0
    elif words[0] == "wandb":
        assert all((ROOT / word).is_file() for word in words if word.endswith(".yaml"))
    elif words[:2] == ["pip", "install"]:
        extras = re.findall(r"\[(\w+)\]", " ".join(words))
        assert all(f"\n{name} = [" in (ROOT / "pyproject.toml").read_text() for name in extras)
    elif words[0] == "python" and words[1].startswith("scripts/"):
        assert (ROOT / words[1]).is_file()
    elif words[:2] == ["python", "-m"]:
        parse_words(words[2], words[3:], monkeypatch)
    elif words[0] == "lm_eval":
        place = ROOT / words[words.index("--include_path") + 1]
        assert (place / f"{words[words.index('--tasks') + 1]}.yaml").is_file()
    else:
        assert words[0] == "source", f"{command}: not known how to check it"


def run(command: Command, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a command at toy size in a directory, after its words are parsed as they are written.

    Raises:
        AssertionError: it did not end with 0.
    """
    words = expanded(command.text, where, must_match=True)
    assert words[:2] == ["python", "-m"], f"{command}: not known how to run it"
    monkeypatch.chdir(where)
    settings = parse_words(words[2], words[3:], monkeypatch)
    name = " ".join(words[2:])
    sizes = [SMALL] if "--text" in words else [SMALL, FEW]
    added = " ".join(
        next((flags for start, flags in of.items() if name.startswith(start)), "") for of in sizes
    )
    small = [INPUTS.get(word, word) for word in _without(words[3:], added.split())] + added.split()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = call(words[2], small)
    assert code == 0, f"{command}: {said.getvalue()[-2000:]}"
    if words[2:4] == ["train", "fit"]:
        _at_its_steps(where / settings["run"], settings)


def _without(words: list[str], others: list[str]) -> list[str]:
    """Words but the flags, each with its values, that others have too: lists would be joined."""
    kept, skipping = [], False
    for word in words:
        if word.startswith("--"):
            skipping = word in others
        if not skipping:
            kept.append(word)
    return kept


def workspace(place: Path) -> Path:
    """A directory as a checkout is, with the stories that stand for TinyStories beside."""
    for name in ("docs", "scripts"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", place)
    stories = place / "tinystories"
    stories.mkdir()
    write_book(place)
    parts = {"train": [(400, 0, "train"), (30, 1, "valid")], "valid": [(160, 2, "valid")]}
    for split, drawn in parts.items():
        texts = (f"{story}\n<|endoftext|>\n" for part in drawn for story in toy_stories(*part))
        (stories / f"{split}.txt").write_text("".join(texts), encoding="utf-8")
    return place


def call(module: str, words: list[str]) -> int:
    """Calls a module's main function with words; its exit code."""
    return _main(module)(words)


def write_book(place: Path) -> None:
    """Writes `book.txt`, a text without separators, of which some paragraphs are for validation."""
    stories = [*toy_stories(300), *toy_stories(30, 0, "valid")]
    (place / "book.txt").write_text("\n\n".join(stories), encoding="utf-8")


def _main(module: str) -> Callable[[list[str]], int]:
    room = module in ("arch", "tokenizer", "train", "eval")
    return import_module(f"{module}.__main__" if room else module).main


def parse_words(module: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict:
    """Has a module parse its words; of a training the settings that they come to."""
    main, printed = _main(module), io.StringIO()
    if module == "train" and words[0] in ("fit", "plan"):
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                code = main([*words, "--print_config"])
            except SystemExit as stopped:
                code = stopped.code
        assert code == 0, printed.getvalue()
        return yaml.safe_load(printed.getvalue())

    def accept(*arguments: object) -> NoReturn:
        parse(*arguments)
        raise Parsed

    def accept_command(name: str) -> Callable[..., object]:
        function = command_function(name)
        parameters = inspect.signature(function).parameters.values()
        hints = {parameter.name: parameter.annotation for parameter in parameters}

        @functools.wraps(function)
        def parsed(**options: object) -> NoReturn:
            options.pop("trust_code", None)  # which every command that opens models takes
            read_arguments(hints, options)
            raise Parsed

        return parsed

    parse: Callable[..., object] = argparse.ArgumentParser.parse_args
    with monkeypatch.context() as patch, contextlib.suppress(Parsed):
        patch.setattr(argparse.ArgumentParser, "parse_args", accept)
        patch.setattr("eval.__main__.command_function", accept_command)
        patch.setattr("sys.argv", [module, *words])
        code = main(words) if main.__code__.co_argcount else main()  # pyright: ignore
        assert code == 0, f"{words}: exit code {code}"
    return {}


def _at_its_steps(run: Path, settings: dict) -> None:
    """Puts a toy run's last model at the steps of the settings, those that pages name."""
    last, every = settings["trainer"]["max_steps"], settings["save_every"]
    steps = {last, *settings["save_steps"], *(range(every, last, every) if every else ())}
    steps = {step for step in steps if step == last or f"step-{step:06d}" in NAMED}
    made = run / "models" / f"step-{STEPS:06d}"
    for step in sorted(steps - {STEPS}) if made.is_dir() else ():
        copy = Path(shutil.copytree(made, run / "models" / f"step-{step:06d}"))
        about = json.loads((copy / "meta.json").read_text()) | {"step": step}
        (copy / "meta.json").write_text(json.dumps(about))
    if STEPS not in steps and made.is_dir():
        shutil.rmtree(made)
