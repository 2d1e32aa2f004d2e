"""Claims run as a user runs them, made small: twice alike, resumed, and with weights of others."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from eval.__main__ import main
from eval.claims.registry import choose, claims
from eval.inversion.run import Job
from eval.rows import ROWS, read_rows
from tests.arch.cases import byte_tokenizer
from tests.arch.test_pretrained import their_model
from tests.eval.claims.cases import asked_in, briefly, prepared, run, small, use

UNTRAINED = (67, 68, 71, 74, 41, 42, 43, 45, 47)


def table(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["claims", "table", str(out)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("three", [UNTRAINED[:3], UNTRAINED[3:6], UNTRAINED[6:]])
def test_three_claims_run_twice_have_one_verdict(
    three, tmp_path, small_tokenizer, monkeypatch, capsys
):
    use(monkeypatch, [small(claim) for claim in choose(list(three))])
    tables = []
    for name in ("a", "b"):
        out = prepared(tmp_path / name, small_tokenizer)
        assert run(*three, "--out", out) == 0
        tables.append(table(out, capsys))
    assert tables[0] == tables[1]
    assert "Traceback" not in tables[0]


def test_a_run_that_was_killed_goes_on(tmp_path, small_tokenizer, monkeypatch, capsys):
    use(monkeypatch, [small(claim) for claim in choose([67, 74])])
    out = prepared(tmp_path / "out", small_tokenizer)
    assert run("--out", out, "--limit", "1") == 0
    assert asked_in(out) == {(67, "reported"), (67, "fair")}
    assert run("--out", out) == 0
    whole = (out / ROWS).read_text()
    lines = whole.splitlines(keepends=True)
    kept = len(lines) // 2
    (out / ROWS).write_text("".join(lines[:kept]) + lines[kept][:9])
    assert run("--out", out) == 0
    mended = [json.loads(line) for line in (out / ROWS).read_text().splitlines()]
    assert [row["key"] for row in mended] == [json.loads(line)["key"] for line in lines]
    assert (out / ROWS).read_text().startswith("".join(lines[:kept]))
    assert asked_in(out) == {(n, p) for n in (67, 74) for p in ("reported", "fair")}
    padded = [row for row in mended if row.get("padded")]
    assert {row["method"] for row in padded} == {"descent"}
    controls = {row.get("control") for row in mended}
    assert controls == {None, "identity", "shuffled"}
    assert "67" in table(out, capsys)


def test_what_one_claim_answered_another_need_not_ask(tmp_path, small_tokenizer, monkeypatch):
    first = small(claims()[74])
    second = replace(first, number=75)
    use(monkeypatch, [first, second])
    out = prepared(tmp_path / "out", small_tokenizer)
    asked: list[str] = []
    answer = Job.rows

    def counted(self):
        rows = answer(self)
        asked.extend(row["key"] for row in rows)
        return rows

    monkeypatch.setattr(Job, "rows", counted)
    assert run("--out", out) == 0
    answers = [
        [key for row in read_rows([out]) if row.get("claim") == n for key in row["keys"]]
        for n in (74, 75)
    ]
    assert answers[0] == answers[1]
    assert set(answers[0]) == set(asked)
    assert len(set(asked)) == len(asked) > 0


def test_a_corpus_that_is_too_small_is_named(tmp_path, small_tokenizer, monkeypatch, capsys):
    use(monkeypatch, [small(claims()[68])])
    out = prepared(tmp_path / "out", small_tokenizer)
    assert main(["claims", "run", "68", "--out", str(out), "--corpus", "toy:40"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"claim 68, 3 prompts.*: the corpus toy:40 has \d+ different.*--corpus", line)
    assert "--count" not in line


def test_trained_models_are_found_or_asked_for(
    tmp_path, small_tokenizer, model_directory, monkeypatch, capsys
):
    use(monkeypatch, [small(claim) for claim in choose([73, 79, 90])])
    out = prepared(tmp_path / "out", small_tokenizer)
    assert run(73, "--out", out) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("claim 73 needs a trained model; fix: python -m train fit --config")
    assert lines[-1].startswith("error: nothing to run")
    for step in (0, 5, 10):
        model_directory("flat", step=step, d_model=32)
    assert run(73, 79, 90, "--out", out, "--models", tmp_path / "flat") == 0
    said = capsys.readouterr()
    assert "claim 79 needs a trained model; fix: python -m train fit --config llama" in said.err
    assert "claim 90 needs facebook/opt-125m" in said.err
    assert re.search(r"^ +79 .*(not asked +){3}$", said.out, re.M)  # without its transformer
    rows = [row for row in read_rows([out]) if "checkpoint" in row]
    steps = {row["checkpoint"]["step"] for row in rows if not row.get("control")}
    assert steps == {10}
    everything = {(n, p) for n in (73, 79, 90) for p in ("reported", "fair")}
    assert asked_in(out) == everything - {(90, "reported")}
    assert run(73, "--out", out, "--models", tmp_path / "nothing") == 2
    assert "nothing: no such directory; give one of runs" in capsys.readouterr().err


def test_seeds_are_of_one_kind(tmp_path, small_tokenizer, model_directory, monkeypatch):
    """Another channel mixer is another model, whatever its mixers, width and depth."""
    use(monkeypatch, [small(claim) for claim in choose([73])])
    out = prepared(tmp_path / "out", small_tokenizer)
    model_directory("flat", step=5, d_model=32)
    other = model_directory("flat", step=6, d_model=32, channel_mixer="swiglu")
    other.rename(tmp_path / "other")
    models = tmp_path / "models"
    (models / "b").mkdir(parents=True)
    (tmp_path / "other").rename(models / "b" / "step-000006")
    assert run(73, "--out", out, "--models", models) == 2
    (tmp_path / "flat").rename(models / "a")
    assert run(73, "--out", out, "--models", models) == 0
    own = [row for row in read_rows([out]) if not row.get("control")]
    assert {row["checkpoint"]["step"] for row in own if "checkpoint" in row} == {5}


def test_another_tokenizer_needs_another_place(tmp_path, model_directory, monkeypatch, capsys):
    use(monkeypatch, [small(claim) for claim in choose([67])])
    out = prepared(tmp_path / "out", byte_tokenizer())
    path = model_directory("flat", step=5)
    assert run(67, "--out", out, "--models", path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "were asked with another tokenizer than that of --models" in line
    assert line.endswith("give another --out")


def test_what_was_found_is_shown(tmp_path, small_tokenizer, monkeypatch, capsys):
    use(monkeypatch, [small(claims()[67])])
    out = prepared(tmp_path / "out", small_tokenizer)
    assert run(67, "--out", out) == 0
    records = tmp_path / "records.jsonl"
    assert main(["claims", "table", str(out), "--store", str(records)]) == 0
    capsys.readouterr()
    assert main(["claims", "show", "67", "--records", str(records)]) == 0
    shown = capsys.readouterr().out
    assert "replicated: ✓" in shown or "replicated: ✗" in shown or "replicated: ?" in shown
    assert "fair, flat: shown tokens by" in shown
    monkeypatch.chdir(tmp_path)
    assert main(["claims", "show", "67"]) == 0
    assert "replicated: " not in capsys.readouterr().out


OF_FAMILY = {"gpt2": 9, "gptj": 25, "llama 1": 50, "mistral": 52}


@pytest.fixture
def weights(tmp_path):
    """A small random model of a family, saved as theirs."""

    def make(family):
        path = tmp_path / "weights"
        their_model(family).float().save_pretrained(path)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
        tokenizer.save_pretrained(path)
        return path

    return make


@pytest.mark.parametrize(
    ("family", "precision"),
    [*((name, "float32") for name in OF_FAMILY), ("gpt2", "bfloat16"), ("llama 1", "bfloat16")],
)
def test_claims_on_weights_given_by_hand(family, precision, weights, tmp_path, monkeypatch, capsys):
    """Weights of another size are refused; in half precision nothing is certified, as is said."""
    number, path = OF_FAMILY[family], weights(family)
    use(monkeypatch, [briefly(number)])
    given = ["--out", tmp_path / "out", "--model", path, "--precision", precision]
    capsys.readouterr()
    assert run(number, *given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"3 blocks of width 32, claim {number} is about" in line
    use(monkeypatch, [briefly(number, size=(32, 3))])
    assert run(number, *given) == 0
    said = capsys.readouterr()
    assert f"\n  {number} " in said.out
    assert asked_in(tmp_path / "out") == {(number, "reported"), (number, "fair")}
    rows = [row for row in read_rows([tmp_path / "out"]) if row["kind"] == "recovery"]
    assert {row["checkpoint"]["d_model"] for row in rows} == {32}
    if precision == "bfloat16":
        reason = f"weights in {precision}: no certificate below float32"
        warned = [line for line in said.err.splitlines() if "certificate" in line]
        assert warned == [f"{path}: {reason}; for certificates: --precision float32"]
        assert {(row["certificate"], row["uncertified"]) for row in rows} == {(None, reason)}


def test_untrained_weights_of_a_family_are_built_anew(weights, tmp_path, monkeypatch):
    use(monkeypatch, [briefly(number, size=(32, 3)) for number in (5, 24)])
    given = ["--out", tmp_path / "out", "--model", weights("gpt2")]
    assert run(*given) == 0
    rows = read_rows([tmp_path / "out"])
    names = {row["key"]: row["checkpoint"]["name"] for row in rows if row["kind"] == "recovery"}
    asked = {(r["claim"], names[key]) for r in rows if r["kind"] == "claim" for key in r["keys"]}
    assert asked == {(5, "weights [random]"), (24, "weights [random embedding]")}


def test_weights_of_the_wrong_family_and_no_weights_at_all(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    out, wrong = tmp_path / "out", weights("gpt2")
    capsys.readouterr()
    assert run(27, "--out", out, "--model", wrong) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its family is gpt2, claim 27 is about llama; give the weights of huggyllama/" in line
    assert run(27, "--out", out, "--model", tmp_path / "cache") == 2
    assert "no config.json there; give a directory in transformers' layout" in (
        capsys.readouterr().err
    )
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({"model_type": "llama", "n_layer": 3}))
    assert run(27, "--out", out, "--model", wrong) == 2
    assert "3 blocks of width 0, claim 27 is about 40 of 5120" in capsys.readouterr().err
    (wrong / "config.json").write_text(json.dumps(config))
    assert run(27, 1, "--out", out) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "claim 27 needs huggyllama/llama-13b (13 B parameters: about 26 GB to download, 13 GB of "
        "memory in 8 bit); fix: python -m eval claims run 27 --download, or --model DIR with the "
        "weights"
    )
    assert "claim 1 needs openai-community/gpt2" in lines[1]
    assert len(lines) == 3


@pytest.mark.slow
def test_three_whole_claims_run_twice_have_one_verdict(tmp_path, capsys):
    tables = []
    for name in ("a", "b"):
        words = ["--group", "random-init", "--limit", "3", "--corpus", "toy:20000"]
        assert main(["claims", "run", *words, "--out", str(tmp_path / name)]) == 0
        tables.append(table(tmp_path / name, capsys))
    assert tables[0] == tables[1]
