"""python -m eval invert: controls, padding, resuming, suites, and one line for every wrong wish."""

from typing import Any

from eval.__main__ import main
from eval.inversion.questions import SUITES, read_suite
from eval.rows import read_rows
from tests.said import complaint

QUICK = ["--count", "2", "--length", "6"]
ONE = [*QUICK, "--layers", "1", "--slices", "[:, 0:, :]"]


def invert(*words: object) -> int:
    return main(["invert", *map(str, words)])


def test_controls_stand_beside_the_model(model_directory, tmp_path):
    model, other = model_directory("flat", step=5), model_directory("other", embedding_std=0.3)
    out, swap = tmp_path / "out", f"embedding={other}"
    controls = ["--controls", "shuffled", "identity", "scale=0.02", swap]
    methods = ["--methods", "sweep", "propose", "chance"]
    words = ["--count", 4, "--length", 8, "--layers", 2, "--slices", "[:, 0:, :]"]
    assert invert(model, "--out", out, *words, *methods, *controls) == 0
    rows: dict[str | None, list[dict[str, Any]]] = {}
    for row in read_rows([out]):
        rows.setdefault(row["control"], []).append(row)
    steps = {None: 5, "shuffled": 5, "identity": 0, "scale=0.02": 0, swap: 5}
    assert {control: len(of) for control, of in rows.items()} == dict.fromkeys(steps, 12)
    assert {control: of[0]["checkpoint"]["step"] for control, of in rows.items()} == steps
    hits = []
    for control, several in rows.items():
        for row in several:
            if control == "shuffled" and row["family"] == "search":
                assert not row["exact"]  # it belongs to another prompt
                hits += [a == b for a, b in zip(row["found"], row["truth"], strict=True)]
            elif row["family"] == "search":
                assert row["exact"], control
                assert row["certificate"], control
            else:
                assert not row["exact"]
    assert sum(hits) / len(hits) < 0.5  # stories share some tokens at the same place
    about = {control: of[0]["checkpoint"] for control, of in rows.items() if control != "shuffled"}
    assert about["identity"]["name"] == "flat [identity]"
    assert len({each["weights_sha256"] for each in about.values()}) == 4


def test_padding_is_shown_and_counts_for_nothing(model_directory, tmp_path):
    model, methods = model_directory(), ["--methods", "sweep", "propose", "adam"]
    out, short = tmp_path / "out", ["--set", "adam.steps=5"]
    assert invert(model, "--out", out, *ONE, *methods, *short, "--pad-to", 16) == 0
    assert invert(model, "--out", out, *ONE, *methods, *short) == 0
    rows = read_rows([out])
    assert [row["padded"] for row in rows] == [True] * 6 + [False] * 6
    for row in rows:
        assert row["length"] == row["self"]["count"] == 6
        assert len(row["found"]) == len(row["verdict"]) == 6
        assert row["observed"] == (16 if row["padded"] else 6)
        assert row["exact"] or row["method"] == "adam"
    assert rows[0]["truth"] == rows[6]["truth"]


def test_allowed_tokens_alone_answer_and_make_rows_of_their_own(model_directory, tmp_path):
    model, out = model_directory(), tmp_path / "out"
    words = [*ONE, "--methods", "adam", "propose", "--set", "adam.steps=5"]
    assert invert(model, "--out", out, *words) == 0
    assert invert(model, "--out", out, *words, "--allowed", "Tom sat down.") == 0
    rows = read_rows([out])
    assert len(rows) == 2 + 2 + 2  # propose is no gradient method: the same question again
    restricted = [row for row in rows if "allowed" in row["settings"]]
    assert [row["method"] for row in restricted] == ["adam"] * 2
    for row in restricted:
        assert set(row["found"]) <= set(row["settings"]["allowed"])
    free = [row for row in rows if row["method"] == "adam" and row not in restricted]
    assert not any(set(row["found"]) <= set(restricted[0]["settings"]["allowed"]) for row in free)


def test_a_restricted_answer_has_its_own_certificate_and_steps(
    model_directory, tmp_path, monkeypatch
):
    """With the true tokens alone allowed the answer is there after few steps, unlike without."""
    monkeypatch.setattr("eval.inversion.gradient.loop.CHECK", 1)
    model, text = model_directory(), "Once upon a time there was a cat."
    words = ["--layers", 1, "--slices", "[:, 0:, :]", "--text", text, "--methods", "adam"]
    words += ["--set", "adam.steps=100"]
    free, own = tmp_path / "free", tmp_path / "own"
    assert invert(model, "--out", free, *words) == 0
    assert invert(model, "--out", own, *words, "--allowed", text) == 0
    (free_row,), (row,) = read_rows([free]), read_rows([own])
    assert row["exact"]
    assert row["at_floor"]
    assert row["certificate"] == "residual"
    assert row["steps_to_solve"] < (free_row["steps_to_solve"] or 101)
    assert row["evaluations"] < free_row["evaluations"]


def test_limit_then_resume_gives_the_same_rows(model_directory, tmp_path):
    model = model_directory()
    words = [*QUICK, "--layers", 1, 2, "--methods", "propose", "chance"]
    words += ["--slices", "[:, 0:, :]", "--seeds", 0, 1]
    assert invert(model, "--out", tmp_path / "whole", *words) == 0
    assert invert(model, "--out", tmp_path / "parts", *words, "--limit", 3) == 0
    first = read_rows([tmp_path / "parts"])
    assert 3 <= len(first) < 12
    assert invert(model, "--out", tmp_path / "parts", *words) == 0
    rows, whole = read_rows([tmp_path / "parts"]), read_rows([tmp_path / "whole"])
    assert rows[: len(first)] == first
    assert len(rows) == len(whole) == 12  # layers x prompts x (propose: one seed; chance: two)
    assert {row["key"]: row["found"] for row in rows} == {row["key"]: row["found"] for row in whole}


def test_no_resume_refuses_a_directory_with_rows(model_directory, tmp_path, capsys):
    model, out = model_directory(), tmp_path / "out"
    words = [model, "--out", out, *ONE, "--methods", "chance"]
    assert invert(*words, "--no-resume") == 0
    before = (out / "rows.jsonl").read_text()
    capsys.readouterr()
    assert invert(*words, "--no-resume") == 2
    assert "holds 2 rows; give another directory" in complaint(capsys)
    assert (out / "rows.jsonl").read_text() == before


def test_joined_layers_parts_noise_and_channels_are_columns(model_directory, tmp_path):
    words = [*QUICK, "--layers", "1+2", "--parts", "mixer", "--slices", "[:, :, 3:50]"]
    asked = ["--without", "norms", "channel", "--noise", 0.01, "--methods", "sweep", "expected"]
    assert invert(model_directory(), "--out", tmp_path / "out", *words, *asked) == 0
    rows = read_rows([tmp_path / "out"])
    assert len(rows) == 4
    for row in rows:
        assert row["site"] == {"layer": [1, 2], "part": "mixer", "without": ["channel", "norms"]}
        assert (row["slice"], row["noise"]) == ("[:, 0:, 3:50]", 0.01)
        assert row["exact"]
    assert {row["family"] for row in rows} == {"search", "prior"}


def test_models_without_mask(model_directory, tmp_path):
    """Searches need a causal model; gradient methods do not."""
    model = model_directory("attention", mixers=("attention(heads=2)",))
    words = [*ONE, "--without", "mask", "--methods", "adam", "propose", "--set", "adam.steps=5"]
    assert invert(model, "--out", tmp_path / "out", *words) == 0
    assert {row["method"] for row in read_rows([tmp_path / "out"])} == {"adam"}


def test_suites_that_come_with_it_can_be_read():
    names = {path.stem for path in SUITES.glob("*.yaml")}
    assert names == {"quick", "standard", "full", "sources"}
    for name in names - {"sources"}:
        suite = read_suite(name)
        assert suite.questions
        assert all(question.methods for question in suite.questions)


def test_a_suite_of_ones_own(model_directory, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "prompts: {set: [story, random], count: 2, length: 5}\n"
        "questions:\n"
        "  - layers: [1, [1, 2]]\n"
        "    methods: {sweep: {}, adam-l1: {method: adam, objective: l1, steps: 3}}\n"
        "  - layers: last\n"
        "    slices: ['[:, 1:, :]']\n"
        "    seeds: [0, 1]\n"
        "    methods: [chance]\n"
    )
    assert invert(model_directory(), "--out", tmp_path / "out", "--suite", path) == 0
    rows = read_rows([tmp_path / "out"])
    assert len(rows) == 2 * 4 * 2 + 4 * 2
    assert {row["method"] for row in rows} == {"sweep", "adam-l1", "chance"}
    settings = next(row["settings"] for row in rows if row["method"] == "adam-l1")
    assert (settings["objective"], settings["steps"]) == ("l1", 3)
    assert {row["prompts"] for row in rows} == {"story", "random"}
