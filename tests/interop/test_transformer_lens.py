"""An exported Llama opens in TransformerLens by the lines of the guide, stream by stream."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from arch import export_transformers, load_model
from eval import open_model
from tests.interop.cases import block_of

pytestmark = pytest.mark.interop
TEXT = "Tom had a red ball."
LLAMA = {"mixers": ("attention(heads=4, kv_heads=2)",), "norm": "rmsnorm",
         "channel_mixer": "swiglu", "n_layers": 3}  # fmt: skip
KEEP = """
from safetensors.torch import save_file
streams = {str(l): cache[f"blocks.{l}.hook_out"].contiguous() for l in range(3)}
save_file({**streams, "logits": logits.contiguous()}, "found.safetensors")
"""


def test_a_llama_opens_in_the_bridge(ask, tmp_path, model_directory):
    path = model_directory("llama", **LLAMA)
    loaded = load_model(path)
    export_transformers(tmp_path / "exports/llama", loaded.model, loaded.tokenizer_json)
    (tmp_path / "lens.py").write_text(block_of("pretrained.md", "TransformerBridge") + KEEP)
    ask("lens.py")
    found, ours = load_file(tmp_path / "found.safetensors"), open_model(path, "cpu")(TEXT)
    near: Any = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(found["logits"], ours.logits, **near)
    worst = (found["logits"] - ours.logits).abs().max()
    for layer in range(3):
        torch.testing.assert_close(found[str(layer)], ours.streams[layer + 1], **near)
        worst = max(worst, (found[str(layer)] - ours.streams[layer + 1]).abs().max())
    print(f"logits and streams differ by at most {float(worst):.1e}")
