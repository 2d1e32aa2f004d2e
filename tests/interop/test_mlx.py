"""mlx-lm runs an exported Llama and saves its prompt cache, whose text `recover` finds."""

import json

import pytest

from arch import export_transformers, load_model
from eval.__main__ import main

pytestmark = pytest.mark.interop
TEXT = "Tom had a red ball."
LLAMA = {"mixers": ("attention(heads=4, kv_heads=2)",), "norm": "rmsnorm",
         "channel_mixer": "swiglu"}  # fmt: skip
SAVE = f"""
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache, trim_prompt_cache

model, tokenizer = load("exports/llama")
ids = tokenizer.encode({TEXT!r})
cache = make_prompt_cache(model)
model(mx.array([ids + ids[:3]]), cache=cache)
trim_prompt_cache(cache, 3)
save_prompt_cache("cache.safetensors", cache)
print(len(ids))
"""


def test_a_prompt_cache_is_recovered(ask, tmp_path, model_directory, capsys):
    path = model_directory("llama", **LLAMA)
    loaded = load_model(path)
    export_transformers(tmp_path / "exports/llama", loaded.model, loaded.tokenizer_json)
    (tmp_path / "save.py").write_text(SAVE)
    count = int(ask("save.py").split()[-1])
    words = ["recover", str(tmp_path / "cache.safetensors"), "--model", str(path)]
    assert main([*words, "--corpus", "toy:400", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["site"].split(".")[0] for row in rows} == {"rotated_key", "value"}
    for row in rows:
        assert (row["text"], row["grades"]) == (TEXT, ["certain"] * count)
