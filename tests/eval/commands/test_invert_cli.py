"""python -m eval invert: controls, padding, resuming, suites, and one line for every wrong wish."""

import json
import re
from collections import Counter

import pytest

from eval.__main__ import main
from eval.rows.store import read_rows
from tests.said import complaint

QUICK = ["--count", "2", "--length", "6"]
ONE = [*QUICK, "--layers", "1", "--slices", "[:, 0:, :]"]


def invert(*words: object) -> int:
    return main(["invert", *map(str, words)])


@pytest.mark.slow
def test_controls_stand_beside_the_model(model_directory, tmp_path):
    model, other = model_directory("flat", step=5), model_directory("other", embedding_std=0.3)
    swap, out = f"embedding={other}", tmp_path / "out"
    words = ["--count", 4, "--length", 8, "--layers", 2, "--slices", "[:, 0:, :]"]
    words += ["--solvers", "sweep", "--controls", "shuffled", "identity", "scale=0.02", swap]
    assert invert(model, "--out", out, *words) == 0
    rows = read_rows([out])
    steps = {None: 5, "shuffled": 5, "identity": 0, "scale=0.02": 0, swap: 5}
    assert Counter(row["control"] for row in rows) == dict.fromkeys(steps, 4)
    assert {row["control"]: row["checkpoint"]["step"] for row in rows} == steps
    for row in rows:
        assert row["exact"] == (row["control"] != "shuffled")  # whose target is another prompt's
        assert row["certificate"]
    about = {row["control"]: row["checkpoint"] for row in rows if row["control"] != "shuffled"}
    assert about["identity"]["name"] == "flat [identity]"
    assert len({each["weights_sha256"] for each in about.values()}) == 4


def test_padding_is_shown_and_counts_for_nothing(model_directory, tmp_path):
    model, methods = model_directory(), ["--solvers", "sweep", "propose", "adam"]
    out, short = tmp_path / "out", ["--set", "adam.steps=5"]
    assert invert(model, "--out", out, *ONE, *methods, *short, "--pad-to", 16) == 0
    assert invert(model, "--out", out, *ONE, *methods, *short) == 0
    rows = read_rows([out])
    assert [row["padded"] for row in rows] == [True] * 6 + [False] * 6
    for row in rows:
        assert row["length"] == row["self"]["count"] == 6
        assert len(row["found"]) == len(row["verdict"]) == 6
        assert row["observed"] == (16 if row["padded"] else 6)
        assert row["exact"] or row["solver"] == "adam"
    assert rows[0]["truth"] == rows[6]["truth"]


def test_allowed_tokens_alone_answer_and_make_rows_of_their_own(model_directory, tmp_path):
    model, out = model_directory(), tmp_path / "out"
    words = [*ONE, "--solvers", "adam", "propose", "--set", "adam.steps=5"]
    assert invert(model, "--out", out, *words) == 0
    assert invert(model, "--out", out, *words, "--allowed", "Tom sat down.") == 0
    rows = read_rows([out])
    assert len(rows) == 2 + 2 + 2  # propose is no gradient solver: the same question again
    restricted = [row for row in rows if "allowed" in row["settings"]]
    assert [row["solver"] for row in restricted] == ["adam"] * 2
    for row in restricted:
        assert set(row["found"]) <= set(row["settings"]["allowed"])
    free = [row for row in rows if row["solver"] == "adam" and row not in restricted]
    assert not any(set(row["found"]) <= set(restricted[0]["settings"]["allowed"]) for row in free)


def test_a_limit_ends_early_and_no_resume_refuses_what_is_there(model_directory, tmp_path, capsys):
    out = tmp_path / "out"
    words = [model_directory(), "--out", out, *QUICK, "--layers", 1, 2, "--solvers", "chance"]
    words += ["--slices", "[:, 0:, :]", "--seeds", 0, 1, "--limit", 3, "--no-resume"]
    assert invert(*words) == 0
    assert 3 <= len(read_rows([out])) < 2 * 2 * 2
    before = (out / "rows.jsonl").read_text()
    capsys.readouterr()
    assert invert(*words) == 2
    assert re.search(r"holds \d rows; give another directory", complaint(capsys))
    assert (out / "rows.jsonl").read_text() == before


def test_a_plan_prices_the_rows_that_are_missing_and_computes_none(
    model_directory, tmp_path, capsys
):
    model, out = model_directory(), tmp_path / "out"
    words = [model, "--out", out, *QUICK, "--layers", 1, 2, "--slices", "[:, 0:, :]"]
    solvers = ["--solvers", "sweep", "adam", "--set", "adam.steps=40"]
    plan = ["--plan", "--format", "json"]
    assert invert(*words, *solvers, *plan) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["to_do"]) == (8, 8)
    assert record["seconds"] > 0
    assert not out.exists()
    assert invert(*words, "--solvers", "sweep") == 0
    capsys.readouterr()
    assert invert(*words, *solvers, *plan) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["to_do"], record["longest"]) == (8, 4, "adam")
    assert len(read_rows([out])) == 4


def test_what_is_left_out_is_said_where_it_was_asked_for(model_directory, capsys):
    asked = [model_directory(), *QUICK, "--layers", 1, "--solvers", "sweep"]
    assert invert(*asked) == 0  # the suite's slices
    assert "left out" not in capsys.readouterr().err
    assert invert(*asked, "--slices", "[:, 0:, :]", "[:, 2:, :]") == 0
    assert "left out: sweep at [:, 2:, :]" in capsys.readouterr().err


def test_a_text_too_short_for_a_slice_is_asked_about_the_others(model_directory, tmp_path, capsys):
    """No text at all was, and the user had typed no slice."""
    asked = [model_directory(), "--layers", 1, "--solvers", "chance", "--out", tmp_path / "out"]
    texts = ["a", "b", "a b c d e", "a c b d e"]
    assert invert(*asked, "--controls", "shuffled", "--text", *texts) == 0
    assert "left out: slice [:, 1:, :]" in (said := capsys.readouterr().err)
    assert said.count("left out") == 1
    slices = {(row["length"] == 1, row["slice"]) for row in read_rows([tmp_path / "out"])}
    assert slices == {(True, "[:, 0:, :]"), *((False, f"[:, {n}:, :]") for n in (0, 1, 3))}


def test_a_suite_of_ones_own(model_directory, tmp_path, capsys):
    """Its entries are calls; flags replace what all of them say; what fits no model is left out."""
    path, out = tmp_path / "mine.yaml", tmp_path / "out"
    path.write_text(
        "joined: {layers: [1, '1+2'], solvers: [sweep, adam], count: 2, length: 5,\n"
        "    prompts: [story, random], set_: [adam.steps=3]}\n"
        "hidden: {layers: last, slices: '[:, 1:, :]', solvers: chance, seeds: [0, 1], count: 2}\n"
        "masked: {without: mask, solvers: adam, count: 1}\n"
    )
    asked = [model_directory(), "--suite", path]
    for _ in range(2):  # nothing is asked twice
        assert invert(*asked, "--out", out) == 0
        said = capsys.readouterr().err
        assert re.search(r"^left out: masked \(.*--without mask", said, re.MULTILINE)
        rows = read_rows([out])
        assert len(rows) == 2 * 4 * 2 + 2 * 2
    assert {row["solver"] for row in rows} == {"sweep", "adam", "chance"}
    settings = next(row["settings"] for row in rows if row["solver"] == "adam")
    assert settings == {"steps": 3}
    assert {row["prompts"] for row in rows} == {"story", "random"}
    few = tmp_path / "few"
    assert invert(*asked, "--out", few, "--solvers", "chance", "--count", 1) == 0
    assert {(row["solver"], row["prompt"]) for row in read_rows([few])} == {("chance", 0)}
    path.write_text("all: {solver: sweep}")
    capsys.readouterr()
    assert invert(*asked, "--out", out) == 2
    assert re.search(r"mine.yaml, all: unknown key", complaint(capsys))


def test_a_flag_replaces_a_suite_s_value_by_its_default(model_directory, tmp_path):
    path, model = tmp_path / "mine.yaml", model_directory()
    path.write_text("late: {solvers: chance, skip: 3, count: 1, length: 5, layers: last}")
    prompts = []
    for name, words in (("suite", []), ("flag", ["--skip", 0])):
        assert invert(model, "--suite", path, "--out", tmp_path / name, *words) == 0
        prompts += [row["text"] for row in read_rows([tmp_path / name])]
    assert len(set(prompts)) == 2


def test_joined_layers_are_one_each_and_have_their_channels(model_directory, tmp_path):
    """A layer that is named twice is joined once; the channels of two are beyond one's width."""
    out = tmp_path / "out"
    asked = [model_directory(), "--out", out, "--text", "Tom ran.", "--solvers", "sweep"]
    assert invert(*asked, "--layers", "1+1") == 0
    (row,) = read_rows([out])
    assert row["site"]["layer"] == 1
    width = row["checkpoint"]["d_model"]
    assert invert(*asked, "--layers", "1+2", "--slices", f"[:, :, :{width + 4}]") == 0
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0


def test_a_shuffled_target_is_never_the_prompt_s_own(model_directory, tmp_path):
    out = tmp_path / "out"
    texts = ["--text", "Tom ran.", "Tom ran.", "The dog sat."]
    asked = ["--solvers", "sweep", "--layers", "last", "--slices", "[:, :2, :]"]
    assert invert(model_directory(), "--out", out, *texts, *asked, "--controls", "shuffled") == 0
    shuffled = [row for row in read_rows([out]) if row["control"]]
    assert shuffled
    assert not any(row["exact"] for row in shuffled)
    assert all(row["at_floor"] for row in shuffled)
    assert not any("ambiguous" in row["verdict"] for row in shuffled)


@pytest.mark.parametrize(
    ("command", "words"),
    [("bits", "--count 1 --before 2 --candidates 4 --distances 0 --layers 1"),
     ("probe", "--layers 1 --steps 1 --train-tokens 128 --valid-tokens 64 --length 16"),
     ("geometry", "--layers 1 --count 1 --hidden 1 --length 4")],
)  # fmt: skip
def test_a_shard_without_tasks_is_no_failure(command, words, model_directory, tmp_path, capsys):
    asked = [command, str(model_directory()), "--out", str(tmp_path / "out"), "--shard", "2/2"]
    assert main([*asked, *words.split(), "--corpus", "toy:400"]) == 0
    said = capsys.readouterr()
    assert "no rows" in said.out
    assert "nothing is left for this --shard" in said.err
