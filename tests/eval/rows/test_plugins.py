"""A user's own files: as `docs/extending.md` shows them, and every way in which they fail."""

import json
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from eval import loss, open_model
from eval.__main__ import main
from eval.inversion.solver import FAMILIES, SOLVERS, solvers
from eval.lenses.lens import LENSES, lens, lenses
from eval.models.checkpoint import open_checkpoint
from eval.models.identity import hash_source
from eval.rows.progress import watching
from eval.rows.store import read_rows
from eval.views.page.page import render_page
from tests.docs_cases import ROOT, blocks
from tests.said import complaint

TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def register():
    """What a plug-in registered is forgotten."""
    before = dict(lenses())
    yield
    LENSES.entries.clear()
    LENSES.entries.update(before)


@pytest.fixture
def plugin(tmp_path):
    """The lens of the document, as a file."""
    section = TEXT[TEXT.index("## A lens") :]
    code = next(lines for _, language, lines in blocks(section) if language == "python")
    path = tmp_path / "lengths.py"
    path.write_text("\n".join(code), encoding="utf-8")
    return path


def test_the_lens_of_the_document_measures_and_draws(plugin, model_directory, tmp_path, capsys):
    model, out, page = model_directory(), tmp_path / "out", tmp_path / "page.html"
    asked = ["--text", "Tom sat.", "--out", str(out), "--plugin", str(plugin)]
    assert main(["lens", str(model), "--lens", "lengths", *asked]) == 0
    checkpoint = open_checkpoint(model)
    tokens = torch.tensor([checkpoint.tokenizer.encode("Tom sat.").ids])
    embedded = checkpoint.model.embed(tokens)
    rows = read_rows([out])
    assert [(row["lens"], row["figure"], row["layer"]) for row in rows] == [
        ("lengths", "last length", layer) for layer in range(len(checkpoint.model.blocks) + 1)
    ]
    assert all((row["n"], row.get("low")) == (1, None) for row in rows)  # of one prompt
    for row in rows:
        last = checkpoint.model.hidden(embedded, row["layer"])[0, -1]
        assert row["value"] == pytest.approx(float(last.norm()), rel=1e-5)
    assert main(["report", str(out), "--out", str(page), "--plugin", str(plugin)]) == 0
    assert 'id="lengths-last-length"' in page.read_text(encoding="utf-8")
    assert "left out" not in capsys.readouterr().err
    assert main(["lenses", "--plugin", str(plugin), "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed[0]["name"] == "residual"
    assert listed[-1]["name"] == "lengths"
    del LENSES.entries["lengths"]
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert "<code>--plugin FILE</code>" in page.read_text(encoding="utf-8")
    said = capsys.readouterr().err.splitlines()
    assert said == ["lens lengths is left out: give the file that defines it as --plugin FILE"]


(UNIT,) = (
    "\n".join(lines)
    for _, language, lines in blocks(TEXT)
    if language == "python" and any("@solver" in line for line in lines)
)
HILL = (ROOT / "docs/examples/hill.py").read_text(encoding="utf-8")
ASKED = ("--text", "Once upon a time", "--layers", "1", "--slices", "[:, :, :]")


@pytest.fixture(autouse=True)
def ours_again(monkeypatch):
    """Solvers entered by a test leave with it."""
    monkeypatch.setattr(SOLVERS, "entries", dict(solvers()))


@pytest.fixture
def example(tmp_path):
    file = tmp_path / "hill.py"
    file.write_text(HILL)
    return file


def invert(model: Path, out: Path, *more: object) -> int:
    return main(["invert", str(model), "--out", str(out), *ASKED, *map(str, more)])


def test_the_examples_of_the_docs_recover_tokens(model_directory, example, tmp_path):
    model, out, unit = model_directory(n_layers=1), tmp_path / "rows", tmp_path / "unit.py"
    unit.write_text(UNIT)
    plugins = ("--plugin", example, "--plugin", unit)
    assert invert(model, out, *plugins, "--solvers", "hill", "unit", "--set", "hill.width=200") == 0
    rows = {row["solver"]: row for row in read_rows([out])}
    assert all(row["exact"] and row["certificate"] == "residual" for row in rows.values())
    assert rows["hill"]["settings"].items() >= {"rounds": 25, "width": 200}.items()
    assert "Exchanges one token at a time for a random one" in render_page([rows["hill"]])
    example.write_text(HILL.replace("25", "24"))  # other code answers anew
    assert invert(model, out, "--plugin", example, "--solvers", "hill") == 0
    found = read_rows([out])
    assert len({row["settings"]["code"] for row in found}) == 3
    assert not any(row["diverged"] for row in found)  # though some tokens are not tried


def test_solvers_are_listed_with_settings_and_defaults(example, capsys):
    assert main(["solvers", "--format", "json", "--plugin", str(example)]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(solvers())
    assert listed["hill"]["settings"]["rounds"] == 25
    assert listed["hill"]["settings_text"]["rounds"] == "over all positions."
    for each in listed.values():
        assert each["family"] in FAMILIES
        assert each["text"]
        assert all(each["settings_text"].values())
    assert main(["solvers", "--names", "adam"]) == 0
    text = capsys.readouterr().out
    assert "adam.steps=300" in text
    assert "sweep" not in text


def test_two_files_of_one_name_do_not_replace_each_other(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hill.py").write_text(HILL)
    files = [word for folder in ("a", "b") for word in ("--plugin", f"{tmp_path}/{folder}/hill.py")]
    assert main(["solvers", *files]) == 2
    assert "solver hill: the name is taken" in capsys.readouterr().err


OWN = """
import torch
from eval.inversion.solver import Answer, solver
from eval.inversion.solvers.sweep import sweep


@solver("search", hidden=range(1))
def mine(problem, generators, *, objective: str = "mse", rate: float = 0.5):
    T, (V, D) = problem.length, problem.vocabulary.shape
    tokens, scores, model = torch.arange(T), torch.zeros(T, V), problem.circuit.model
    good = [Answer(tokens, scores, vectors=torch.zeros(T, D)) for _ in generators]
    return good
"""


@pytest.fixture
def own(tmp_path):
    """Writes the file of a solver that returns what is given."""
    file = tmp_path / "mine.py"

    def write(returned: str = "good") -> Path:
        file.write_text(OWN.replace("return good", f"return {returned}"))
        return file

    return write


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "line 7: TypeError"),
        ("good[0]", "line 7: TypeError"),
        ("[]", "gives 0 answers to 1 rows"),
        ("good + good", "gives 2 answers to 1 rows"),
        ("[3]", "answer 1: is a int"),
        ("[Answer(tokens + V, scores)]", "answer 1: tokens are"),
        ("[Answer(tokens[1:], scores)]", "answer 1: tokens are"),
        ("[Answer(tokens / 2, scores)]", "answer 1: tokens are"),
        ("[Answer(tokens, scores[:, :9])]", "answer 1: scores are"),
        ("[Answer(tokens, None)]", "answer 1: scores are"),
        ("[Answer(tokens, scores, vectors=scores)]", "answer 1: vectors are"),
        ("[Answer(tokens, scores, notes={'loss': scores})]", "answer 1: notes: "),
        ("[Answer(tokens, scores, evaluations=scores.sum())]", "answer 1: evaluations: "),
        ("1 / 0", "mine.py): line 12: ZeroDivisionError"),
        ("problem.target.zero_() is good or good", "in place"),
        ("problem.tolerance.limit.mul_(1e9) is good or good", "in place"),
        ("problem.vocabulary.div_(2) is good or good", "in place"),
        ("model.embedding.weight.data[5].zero_() is good or good", "in place"),
    ],
)  # fmt: skip
def test_a_solver_that_answers_wrongly_is_refused(
    returned, said, own, model_directory, tmp_path, capsys
):
    """It was a traceback, after the work; or later solvers were asked of another model."""
    asked = ("--plugin", own(returned), "--solvers", "mine", "sweep")
    assert invert(model_directory(n_layers=1), tmp_path / "out", *asked) == 2
    line = complaint(capsys)
    assert said in line
    assert "solver mine" in line


def test_what_a_watcher_raises_is_not_the_solvers(own, model_directory, tmp_path):
    """It was a refusal that blamed the user's file."""

    def watch(progress):
        raise KeyError("enough")

    asked = ("--plugin", own("sweep(problem, generators)"), "--solvers", "mine")
    with watching(watch), pytest.raises(KeyError):
        invert(model_directory(n_layers=1), tmp_path / "out", *asked)


def test_a_solver_of_a_user_proves_nothing_and_has_an_objective_of_its_own(
    own, model_directory, tmp_path, capsys
):
    """What it enumerated was proved by its word; its objective was looked for among ours."""
    model, out = model_directory(n_layers=1), tmp_path / "out"
    asked = ("--plugin", own("sweep(problem, generators)"), "--solvers", "mine", "--set")
    assert invert(model, out, *asked, "mine.objective=mae", "mine.rate=1") == 0
    (row,) = read_rows([out])
    assert (row["exact"], row["certificate"]) == (True, "residual")
    capsys.readouterr()
    assert invert(model, out, *asked, "mine.objective=mae", "mine.rate=1.0") == 0
    assert "every row is there already" in capsys.readouterr().err
    assert invert(model, out, "--plugin", own(), "--solvers", "mine") == 0
    assert [row["criterion"] for row in read_rows([out])] == [None, None]


@pytest.mark.parametrize("setting", ["steps: int", "steps: int | None = None", "steps=(1, 2)"])
def test_a_setting_that_no_flag_can_set_is_refused(setting, own, capsys):
    """It was given a class for a number, and no value was taken."""
    file = own()
    file.write_text(OWN.replace("rate: float = 0.5", setting))
    assert main(["solvers", "--plugin", str(file)]) == 2
    assert "solver mine, setting steps: " in complaint(capsys)


LENS = """
from eval.lenses.lens import lens


@lens("mine")
def measure(checkpoint, batch, request, table):
    s = batch.streams
    s -= s.mean(dim=-1, keepdim=True)
    table.add("size", s.norm())
"""


def test_a_lens_that_writes_in_place_changes_no_other(model_directory, tmp_path):
    """Lenses after it read what it had made of the streams."""
    model, file, found = model_directory(), tmp_path / "mine.py", []
    file.write_text(LENS)
    for names in (["residual"], ["mine", "residual"]):
        out = tmp_path / "-".join(names)
        asked = ["--text", "Tom sat.", "--out", str(out), "--plugin", str(file)]
        assert main(["lens", str(model), "--lens", *names, *asked]) == 0
        found.append([row["value"] for row in read_rows([out]) if row["lens"] == "residual"])
    assert found[0] == found[1] != []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("checkpoint.model.embedding.weight.div_(2).norm()", "in place"),
        ("1 / 0", "line 9: ZeroDivisionError"),
    ],
)
def test_a_lens_that_fails_is_refused(code, said, model_directory, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(LENS.replace("s.norm()", code))
    words = ("--lens", "mine", "--plugin", str(file), "--text", "Tom sat.")
    assert main(["lens", str(model_directory()), *words]) == 2
    assert said in complaint(capsys)


def test_a_lens_whose_file_changed_is_asked_anew(plugin, model_directory, tmp_path):
    model, out = str(model_directory()), tmp_path / "out"
    asked = ["lens", model, "--lens", "lengths", "--text", "Tom sat.", "--out", str(out)]
    assert main([*asked, "--plugin", str(plugin)]) == 0
    before = {row["value"] for row in read_rows([out])}
    plugin.write_text(plugin.read_text().replace(".norm(dim=-1)", ".norm(dim=-1) + 100"))
    assert main([*asked, "--plugin", str(plugin)]) == 0
    after = {row["value"] for row in read_rows([out])} - before
    assert len(after) == len(before)
    assert min(after) > 100


MIXER = """
from arch.mixers import TokenMixer

class Halved(TokenMixer):
    def __init__(self, d_model, context):
        super().__init__()

    def forward(self, x):
        return x / 2
"""


def test_rows_of_a_mixer_whose_file_changed_are_refused(
    model_directory, tmp_path, monkeypatch, capsys
):
    """The figures of the earlier code were given as its own."""
    file = tmp_path / "halved_mixer.py"
    file.write_text(MIXER)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = str(model_directory(mixers=("halved_mixer.Halved",)))
    words = ["loss", model, "--text", "Tom sat.", "--out", str(tmp_path / "out"), "--trust_code"]
    assert main(words) == main(words) == 0
    assert "every row is there already" in capsys.readouterr().err
    file.write_text(MIXER.replace("x / 2", "x / 30"))
    assert main(words) == 0  # the code that was loaded runs, and its rows are there
    assert "every row is there already" in capsys.readouterr().err
    del sys.modules["halved_mixer"]  # as in another process
    assert main(words) == 2
    assert "are of other settings" in capsys.readouterr().err


def test_a_model_of_a_class_in_a_notebook_is_asked(small_model, small_tokenizer, monkeypatch):
    """It stands in no file that could be hashed."""
    module = small_model()
    module.__class__ = type("Mine", (type(module),), {"__module__": "notebook"})
    monkeypatch.setitem(sys.modules, "notebook", ModuleType("notebook"))
    assert loss(open_model(module, tokenizer=small_tokenizer), text="Tom sat.").rows


def test_a_lens_of_a_notebook_may_be_written_anew_and_is_asked_anew():
    """Each cell has a file name of its own, and no file."""
    hashes = set()
    for number in (1, 2):
        cell, lines = f"<cell {number}>", f"def measure(question):\n    return {number}\n"
        linecache.cache[cell] = (len(lines), None, lines.splitlines(keepends=True), cell)
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(lines, cell, "exec"), space)
        lens("mine")(space["measure"])
        hashes.add(hash_source(lenses()["mine"].measure))
    assert len(hashes) == 2
    assert None not in hashes
