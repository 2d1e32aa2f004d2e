"""`python -m eval lens` as a user types it: documents, rows, resuming, and every wrong wish."""

import pytest
import torch

from eval import RequestError
from eval.__main__ import main
from eval.lenses import detokenisation, tuned
from eval.lenses import lens as register
from eval.lenses.lens import REGISTER, Lens, read_documents
from eval.rows import ROWS, read_rows

FAST = ("--corpus", "toy:900", "--tokens", "400")


def look(*words: object) -> int:
    return main(["lens", *map(str, words)])


@pytest.fixture
def refused(capsys):
    """Asks for what cannot be: the one line that is said of it."""

    def ask(*words):
        capsys.readouterr()
        assert look(*words) == 2
        said = capsys.readouterr().err.splitlines()
        (line,) = [line for line in said if not line.startswith("corpus: ")]
        return line

    return ask


def counting(name, seen):
    """A lens that tells whom it looked at."""

    def measure(checkpoint, batch, request, table):
        seen.append(checkpoint.meta["name"])
        table.add("size", torch.tensor([1.5, torch.inf]), layer=[0, 1])
        table.add("size", 7.25, layer="all")
        table.add("share", torch.tensor([True, False, False, False]), part="a [b]", story=range(4))
        table.say("a table", ["[x]", "y"], [["[red]", ["2", " b"]]])

    return Lens(name, "counts", measure, name)


def test_documents_and_rows_hold_what_was_found(model_directory, tmp_path):
    models = [model_directory("flat", step=0), model_directory("flat", step=10)]
    out = tmp_path / "out"
    words = ("--lens", "residual", "logit", "--count", 2, "--length", 12, "--words", "a")
    assert look(*models, "--out", out, *words, *FAST) == 0
    documents = list(read_documents(out))
    asked = sorted((d["lens"], d["checkpoint"]["step"]) for d in documents)
    assert asked == [("logit", 0), ("logit", 10), ("residual", 0), ("residual", 10)]
    request = {"words": ["a"], "corpus": "toy:900", "tokens": 400, "seed": 0}
    for document in documents:
        assert [len(pieces) for pieces in document["pieces"].values()] == [12, 12]
        assert document["request"] == request
    rows = read_rows([out])
    assert len({row["key"] for row in rows}) == len(rows)
    for row in rows:
        assert (row["kind"], row["prompts"], row["length"]) == ("lens", 2, 12)
        assert isinstance(row["value"], float)
        assert [n for n, v in row.items() if isinstance(v, dict | list)] == ["checkpoint"]
    norms = [r for r in rows if r["figure"] == "norm" and r["checkpoint"]["step"] == 10]
    assert [row["layer"] for row in norms] == [0, 1, 2]
    assert {row["word"] for row in rows if row["figure"] == "probability at the end"} == {"a"}


def test_what_was_looked_at_is_not_looked_at_again(model_directory, tmp_path, monkeypatch, capsys):
    seen: list[str] = []
    monkeypatch.setitem(REGISTER, "counting", counting("counting", seen))
    out, asked = tmp_path / "out", ("--lens", "counting", "--text", "Tom sat.", *FAST)
    first, second = (model_directory(name) for name in ("first", "second"))
    assert look(first, "--out", out, *asked) == 0
    shown = capsys.readouterr().out
    parts = (
        "size",
        "all",
        "7.25",
        "a [b]",
        "0.25 (0–1)",
        "4",
        "a table",
        "[red]",
        "2 ·b",
        "step 0",
    )
    assert [part for part in parts if part not in shown] == []
    assert look(first, second, "--out", out, *asked) == 0
    assert "first at 0   second at 0" in capsys.readouterr().out
    rows = read_rows([out])
    assert [row["value"] for row in rows] == [1.5, None, 7.25, 0.25] * 2
    assert rows[1]["reason"] == "value is inf"
    (out / ROWS).unlink()  # they are made of the documents again
    assert look(first, "--out", out, *asked) == 0
    assert read_rows([out]) == rows[:4]
    assert seen == ["first", "second"]
    assert look(first, "--out", out, *asked, "--seed", 1) == 0
    assert seen == ["first", "second", "first"]
    assert all("NaN" not in path.read_text() for path in (out / "lenses").glob("*.json"))


def test_what_is_fitted_is_kept(model_directory, tmp_path, monkeypatch):
    """Other prompts need no other fit; another model or text does. Rows are the same."""
    fits: list[str] = []
    for module, name in ((tuned, "fit_tuned"), (detokenisation, "fit_layers")):
        real = getattr(module, name)
        counted = lambda *args, real=real, name=name: fits.append(name) or real(*args)  # noqa: E731
        monkeypatch.setattr(module, name, counted)
    out, all_fits = tmp_path / "out", ["fit_tuned", "fit_layers"]
    words = ["--lens", "tuned", "detokenisation", "--tokens", 1500]
    toy, other = ("--corpus", "toy:900"), ("--corpus", "toy:1500")
    tom, ran = ("--text", "Tom sat.", *toy), ("--text", "Tom ran to the dog.", *toy)
    first, second = model_directory("first"), model_directory("second", d_model=16)
    for model, expected, *asked in (
        (first, all_fits, *tom),
        (first, [], *ran),
        (first, all_fits, "--text", "Tom sat.", *other),
        (first, [], *tom, "--seed", 1),
        (second, all_fits, *tom),
    ):
        fits.clear()
        assert look(model, "--out", out, *words, *asked) == 0
        assert fits == expected
    assert look(first, "--out", tmp_path / "new", *words, *ran) == 0
    rows, fresh = ({r["key"]: r for r in read_rows([place])} for place in (out, tmp_path / "new"))
    assert fresh.items() <= rows.items()


def test_a_lens_that_cannot_look_is_left_out_unless_asked_for(
    model_directory, tmp_path, monkeypatch, capsys, refused
):
    def fussy(*_):
        raise RequestError("this model has no such part; use another lens")

    seen: list[str] = []
    both = {"fussy": Lens("fussy", "", fussy, ""), "counting": counting("counting", seen)}
    monkeypatch.setattr(register, "lenses", lambda: both)
    model, asked = model_directory(), ("--out", tmp_path / "out", "--text", "Tom sat.")
    assert look(model, *asked) == 0
    said = capsys.readouterr().err
    assert "fussy left out: this model has no such part; use another lens\n" in said
    assert seen == ["flat"]
    line = refused(model, *asked, "--lens", "fussy")
    assert line == "error: this model has no such part; use another lens"


def test_words_of_several_tokens_are_refused(model_directory, tmp_path, refused, small_tokenizer):
    vocabulary, model = small_tokenizer.get_vocab(), model_directory()
    once = (t[1:] for t in vocabulary if t[0] == "Ġ" and len(t) > 3 and t[1:] not in vocabulary)
    spaced = next(once)
    for word, other in (("kitten", ""), (spaced, f', or " {spaced}", which is one')):
        ids = small_tokenizer.encode(word).ids
        split = " ".join(f'"{small_tokenizer.decode([token])}"' for token in ids)
        line = refused(model, "--out", tmp_path / "out", "--words", word)
        assert f'"{word}" is {len(ids)} tokens here: {split}; choose one of them{other}' in line
        assert not (tmp_path / "out").exists()


def test_nothing_is_kept_of_a_checkpoint_that_is_done(model_directory, tmp_path, monkeypatch):
    held: list[dict] = []
    seen: list[list[int]] = []

    def measure(checkpoint, batch, request, table):
        checkpoint.kept.setdefault("looks", []).append(len(held))
        held.append(checkpoint.kept)
        seen.append(list(held[0].get("looks", [])))

    for name in ("first", "second"):
        monkeypatch.setitem(REGISTER, name, Lens(name, "keeps", measure, name))
    models = [model_directory(name, d_model=width) for name, width in (("a", 32), ("b", 16))]
    asked = ("--text", "Tom", "--lens", "first", "second")
    assert look(*models, "--out", tmp_path / "out", *asked) == 0
    assert seen == [[0], [0, 1], [], []]
