"""Commands as functions: what help needs, what a call takes, and what its result can do."""

import contextlib
import functools
import json
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import eval as evals
from arch import check_causal, save_model
from eval.__main__ import command_function, main
from eval.commands.flags import read_arguments
from eval.commands.result import Result, command
from eval.commands.views import summary
from eval.messages import say_once
from tests.said import one_line
from tokenizer import splits

KINDS = {"invert": "recovery"}
HELP = """
import contextlib, io, sys
from eval.__main__ import COMMANDS, main
for words in ([], *([name] for name in COMMANDS)):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*words, "--help"])
print({"torch", "numpy", "pandas", "tokenizer"} & set(sys.modules))
"""


def test_help_of_every_command_needs_no_torch():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


READ = [
    ("invert", "--layers 1 2 1+4", {"layers": ("1", "2", "1+4")}),
    ("invert", "--set adam.steps=5 adam.rate=1", {"set_": ("adam.steps=5", "adam.rate=1")}),
    ("invert", "--text=-x --pad_to 8", {"text": ("-x",), "pad_to": 8}),
    ("invert", "--noise 0 1e-1 --no-resume", {"noise": (0.0, 0.1), "resume": False}),
    ("invert", "--plugin a.py --plugin b.py", {"plugin": ("a.py", "b.py")}),
    ("probe", "--offsets -3 0 --rate 0.5", {"offsets": (-3, 0), "rate": 0.5}),
    ("bits", "--quantisers int8 fp8", {"quantisers": ("int8", "fp8")}),
    ("invert", "--seeds 9007199254740993 1e3", {"seeds": (9007199254740993, 1000)}),
    ("loss", "--corpus toy", {"corpus": "toy"}),
    ("bits", "--full --text -x", {"full": True, "text": "-x"}),
]
OPEN = [object(), object()]
"""In the place of open models."""


@pytest.mark.parametrize(("name", "words", "read"), READ)
def test_flags_are_read_as_arguments_are(name, words, read, monkeypatch):
    """Of a command line and from Python; what is not given has its default."""
    function, calls = command_function(name), []

    @functools.wraps(function)
    def call(**given):
        calls.append(given)
        return Result([], "")

    monkeypatch.setattr("eval.__main__.command_function", lambda name: call)
    assert main([name, "one", "two", *words.split()]) == 0
    (given,) = calls
    defaults = {p.name: p.default for p in signature(function).parameters.values()}
    defaults["plugin"] = ()
    assert given == {n: defaults[n] for n in given} | {"models": ("one", "two")} | read
    hints = {p.name: p.annotation for p in signature(function).parameters.values()}
    assert read_arguments(hints, read) == read


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"layers": np.int64(1)}, {"layers": ("1",)}),
        ({"layers": torch.tensor([1, 2])}, {"layers": ("1", "2")}),
        ({"noise": np.array([0.0, 0.5])}, {"noise": (0.0, 0.5)}),
        ({"text": pandas.Series(["Tom", "Mia"], index=[5, 6])}, {"text": ("Tom", "Mia")}),
        ({"text": iter(["Tom", "Mia"])}, {"text": ("Tom", "Mia")}),  # a second model had none
        ({"models": iter(OPEN)}, {"models": OPEN}),
        ({"models": []}, "models: give one at least"),
        ({"models": None}, "models: give one at least"),
        ({"models": ["a", ""]}, "models '': the value is empty"),
        ({"text": b"abc"}, "--text b'abc': give a text"),  # three texts: 97, 98 and 99
        ({"text": [Path("book.txt")]}, "--text book.txt: a path is no text"),  # its name was read
        ({"slices": slice(1, None)}, "--slices slice(1, None, None): give it in quotes"),
        ({"layers": np.ones((2, 2), int)}, "--layers [1, 1]: give a flat list"),
        ({"text": pandas.Series(["Tom", float("nan")])}, "--text nan: a missing value"),  # "nan"
        ({"text": []}, "--text: the list is empty"),  # stories of the corpus were asked
        ({"without": []}, {"without": ()}),
        ({"noise": [None]}, "--noise None: give words or numbers"),
        ({"suite": {"quick": 1}}, "--suite {'quick': 1}: give words or numbers, not a mapping"),
        ({"corpus": [object(), object()]}, "--corpus: 2 are given; give one value"),
    ],
)
def test_values_of_python_are_read_or_refused(given, read):
    function = command_function("invert")
    hints = {p.name: p.annotation for p in signature(function).parameters.values()}
    if isinstance(read, dict):
        assert read_arguments(hints, given) == read
    else:
        with pytest.raises(evals.RequestError) as refusal:
            read_arguments(hints, given)
        assert str(refusal.value).startswith(read)


@pytest.mark.parametrize("view", [evals.compare, summary])
def test_a_result_is_not_the_directory_of_its_rows(view):
    with one_line(evals.RequestError, "figures: a Result; give the directory"):
        view(Result([], "a table\nof figures"))


def test_a_star_imports_the_functions():
    names: dict[str, Any] = {}
    exec("from eval import *", names)
    assert names["invert"] is evals.invert  # there were none


def test_what_is_no_text_of_a_model_is_one_line(model_directory):
    model = evals.open_model(model_directory())
    size = model.config.vocab_size
    given = {
        "text: a list; give": [1, 2],
        "text: a torch.float32; give": torch.ones(1, 2),
        "text: a torch.bool; give": torch.ones(1, 2, dtype=torch.bool),
        "text: a torch.complex64; give": torch.ones(1, 2, dtype=torch.complex64),
        f"text: token ids from 1 to {size}; allowed: 0 to {size - 1}": torch.tensor([[1, size]]),
    }
    for message, value in given.items():
        with pytest.raises(evals.RequestError) as refusal:
            model(value)  # pyright: ignore[reportArgumentType]
        assert str(refusal.value).startswith(message)
    plain = torch.tensor([[1, 2, 3]])
    for kind in (torch.int16, torch.uint8, torch.uint16):  # as data of other programs are packed
        assert torch.equal(model(plain.to(kind)).logits, model(plain).logits)
    with pytest.raises(evals.RequestError, match="--seed None: give a value, or leave it out"):
        evals.generate(model, seed=None)  # pyright: ignore[reportArgumentType]


def test_invert_from_python_is_that_of_the_command(model_directory, tmp_path, capsys):
    path, out = model_directory(), tmp_path / "out"
    text, methods = "Tom had a red ball.", ["sweep", "propose"]
    model = evals.open_model(path, "cpu")
    result = evals.invert(model, text=text, layers="last", solvers=methods, corpus="toy:400")
    words = ["invert", str(path), "--out", str(out), "--text", text, "--layers", "last"]
    words += ["--corpus", "toy:400"]
    assert main([*words, "--solvers", *methods, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    kept = ("key", "found", "verdict", "rank")
    assert [[row.get(k) for k in kept] for row in rows] == [
        [row.get(k) for k in kept] for row in result.rows
    ]
    frame = result.frame[result.frame["quantity"] == "exact"]
    assert frame["step"].tolist() == [0] * len(rows)
    assert {"sweep", "propose"} == set(result.frame["solver"])
    summed = summary(str(out))
    assert summed.frame.equals(pandas.DataFrame(summed.rows))
    assert {"kind", "solver", "self", "prompts"} <= set(summed.frame.columns)
    assert "<" in result._repr_html_()
    capsys.readouterr()
    result.show()
    assert capsys.readouterr().out
    assert Path(result.page(str(tmp_path / "page.html"))).read_text().startswith("<!")


@pytest.fixture(scope="module")
def ask(tmp_path_factory, small_model, small_tokenizer):
    """Asks for figures and outputs of one model; with what it answers by itself."""
    place = tmp_path_factory.mktemp("asked") / "flat"
    save_model(place, small_model(n_layers=1), small_tokenizer.to_str(), {"name": "flat"})

    def ask():
        model = evals.open_model(place)
        loss = evals.loss(model, text="The dog ran.").rows[0]["nats_per_token"]
        found = evals.invert(model, text="ab", layers=1, solvers="alternating", slices="[:, 1:, :]")
        states = model("The dog ran.").streams[1][0]
        (batch,) = evals.activations(model, ["The dog ran."], 1)
        figures = loss, found.rows[0]["residual"], check_causal(model.model)
        tokens = evals.recover(model, states).tokens
        return *figures, tokens.tolist(), batch.outputs["block.1"].tolist()

    return ask, ask()


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["autocast", "float64", "meta", "inference", "medium", "tf32"])
def test_figures_do_not_depend_on_what_a_notebook_has_set(ask, kind):
    """Of tensors of its own: under autocast a loss was another one, in silence."""
    again, expected = ask
    try:
        with contextlib.ExitStack() as stack:
            if kind == "autocast":
                stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            elif kind == "meta":
                stack.enter_context(torch.device("meta"))
            elif kind == "inference":
                stack.enter_context(torch.inference_mode())
            elif kind == "medium":  # bfloat16, on a CPU that has units for it
                torch.set_float32_matmul_precision("medium")
            elif kind == "tf32":  # as transformers sets it, by the newer name
                torch.backends.cuda.matmul.fp32_precision = "tf32"
            else:
                torch.set_default_dtype(torch.float64)
            assert again() == expected
            assert torch.get_default_dtype() == (
                torch.float64 if kind == "float64" else torch.float32
            )
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


def test_rows_and_tables_are_of_the_call_alone(model_directory, tmp_path):
    """Though the directory holds more."""
    models = [model_directory("flat", step, n_layers=1) for step in (0, 5)]
    out = str(tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    assert evals.geometry(models[0], layers=1, hidden=1, count=1, length=4).rows
    assert sorted(tmp_path.rglob("*")) == before  # without `out`
    asked = {
        "invert": {"text": "Tom sat.", "layers": 1, "solvers": "sweep"},
        "geometry": {"layers": 1, "hidden": 1, "count": 1, "length": 4},
        "lens": {"lens": "residual", "text": "Tom sat.", "tokens": 400},
    }
    for name, words in asked.items():
        first = getattr(evals, name)(models[0], out=out, **words)
        assert {row["kind"] for row in first.rows} == {KINDS.get(name, name)}
        second = getattr(evals, name)(models[1], out=out, **words)
        assert {row["checkpoint"]["step"] for row in second.rows} == {5}
        again = getattr(evals, name)(models, out=out, **words)
        assert again.rows == [*first.rows, *second.rows]


def test_answers_are_printed_with_wrong_tokens_marked(model_directory):
    model = model_directory(n_layers=1)
    words: dict[str, Any] = {"text": "Tom sat.", "layers": 1, "set_": "adam.steps=1"}
    result = evals.invert(model, solvers=["sweep", "adam"], **words)
    _, *lines = str(result).splitlines()[:3]
    wrong = sum(
        a != b for a, b in zip(*(result.rows[1][n] for n in ("truth", "found")), strict=True)
    )
    assert lines[1].count("[") - 1 == wrong > 0  # one is the slice's


def test_advice_is_given_once_in_each_question(capsys, caplog):
    """It was given once in a kernel's life."""

    @command
    def part() -> Result:
        say_once("advice")
        splits.say_once("advice on a corpus")
        return Result([], "")

    @command
    def whole() -> Result:
        part()
        return part()

    for question in (part, whole):
        for _ in range(2):
            caplog.clear()
            question()
            assert capsys.readouterr().err == "advice\n"
            assert caplog.messages == ["advice on a corpus"]
