"""lm-eval gives of an export what `eval loss --windows lm-eval` gives; its samples are paired."""

import json

import pytest
from tokenizers import Tokenizer, processors

from arch import export_hub, export_transformers, load_model
from eval import compare, loss
from tests.interop.cases import ROOT, block_of

pytestmark = pytest.mark.interop
LLAMA = {"mixers": ("attention",), "norm": "rmsnorm", "channel_mixer": "swiglu"}


def test_bits_per_byte_are_those_of_eval_loss(ask, tmp_path, model_directory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(block_of("lm-eval/README.md", "open_corpus").replace("data/tinystories", "toy:400"), {})
    models = {
        "flat": (model_directory("flat"), export_hub),
        "llama": (model_directory("llama", **LLAMA), export_transformers),
        "adds-bos": (model_directory("llama", **LLAMA), export_transformers),
    }
    figures = {}
    for name, (path, export) in models.items():
        loaded = load_model(path)
        export(tmp_path / "exports" / name, loaded.model, loaded.tokenizer_json)
        if name == "adds-bos":
            path = f"hf:{_add_bos(tmp_path / 'exports' / name)}"
        arguments = f"pretrained=exports/{name},trust_remote_code=True"
        ask("-m", "lm_eval", "--model", "hf", "--model_args", arguments, "--device", "cpu",
            "--include_path", ROOT / "docs/lm-eval", "--tasks", "remnant_stories",
            "--batch_size", 4, "--output_path", f"samples/{name}", "--log_samples")  # fmt: skip
        (file,) = (tmp_path / "samples" / name).glob("*/results_*.json")
        theirs = json.loads(file.read_text())["results"]["remnant_stories"]["bits_per_byte,none"]
        (row,) = loss(path, corpus="stories", windows="lm-eval").rows
        print(f"{name}: lm-eval {theirs:.7f}, eval loss {row['bits_per_byte']:.7f}")
        assert row["bits_per_byte"] == pytest.approx(theirs, abs=1e-4)
        figures[name] = theirs
    (pair,) = compare(["samples/flat", "samples/llama"]).rows
    stories = len((tmp_path / "stories/valid.jsonl").read_text().splitlines())
    assert (pair["n"], pair["second"]) == (stories, pytest.approx(figures["llama"]))


def _add_bos(export):
    """The directory, whose tokenizer now adds a token that begins a text, as a Llama's does."""
    tokenizer = Tokenizer.from_file(str(export / "tokenizer.json"))
    begin = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin[0]} $A", special_tokens=[begin]
    )
    tokenizer.save(str(export / "tokenizer.json"))
    return export
