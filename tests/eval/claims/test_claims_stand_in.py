"""Claims asked without the weights that they are about: of a stand-in, or of random weights."""

import json
import re
from dataclasses import replace

from eval.claims import registry
from eval.claims.columns import judge
from eval.claims.evidence import evidence
from eval.claims.pages import claims_page
from eval.claims.registry import claims
from eval.claims.sources import size_of
from eval.rows import read_rows
from tests.eval.claims.cases import asked_in, brief, briefly, prepared, run, small, use


def test_an_untrained_gpt2_needs_no_download(tmp_path, small_tokenizer, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: 1 / 0)
    use(monkeypatch, [briefly(5, size=(64, 2))])
    out = prepared(tmp_path / "out", small_tokenizer)
    assert run(5, "--out", out) == 0
    assert asked_in(out) == {(5, "reported"), (5, "fair")}
    recoveries = [row for row in read_rows([out]) if row["kind"] == "recovery"]
    sizes = {(r["checkpoint"]["d_model"], r["checkpoint"]["n_layers"]) for r in recoveries}
    assert sizes == {(64, 2)}
    embedding = 64 * (50_257 + 1_024)  # tokens, and positions
    assert {r["checkpoint"]["parameters"] > embedding for r in recoveries} == {True}
    (name,) = {size_of(r["checkpoint"]) for r in recoveries}
    assert name == "gpt2 d64 n2 untrained"


def test_a_stand_in_answers_apart(tmp_path, model_directory, monkeypatch, capsys):
    """It is asked in place of the claim's model, says so in its rows, and decides nothing."""
    name, claim = "smollm2-135m", briefly(1)
    arms = brief(small(claims()[1].asked_of(name)).arms, {})
    use(monkeypatch, [replace(claim, stand_ins={name: arms})])
    out, path = tmp_path / "out", model_directory("llama", step=5)
    assert run(1, "--out", out, "--stand-in", path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"its name is llama; registered are {name} (" in line
    meta = json.loads((path / "meta.json").read_text()) | {"name": name}
    (path / "meta.json").write_text(json.dumps(meta))
    assert run(1, "--out", out, "--stand-in", path) == 0
    rows = [row for row in read_rows([out]) if row["kind"] == "claim"]
    assert {row["stand_in"] for row in rows} == {name}
    records, _ = evidence(read_rows([out]), registry.claims())
    judged = judge(registry.claims()[1], records)
    assert not judged.asked
    (other,) = judged.stand_ins
    assert other.asked
    page = claims_page([judged], [])
    assert re.search(r"\| replicated \| – \| – \| – \| – \| 1 \|", page)
    assert "(n 1, too few; stand-in: SmolLM2-135M (4-bit))" in page
    assert page.index("## Not asked") < page.index("claim-1") < page.index("## Asked of a stand-in")
