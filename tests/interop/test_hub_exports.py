"""Every mixer leaves for the hub and is the same model there."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import arch
from arch import export_hub, load_pretrained
from tests.arch.cases import MIXERS
from tests.interop.cases import HERE

pytestmark = pytest.mark.interop
HYBRIDS = (("flat", "attention(heads=2)"), ("attention(heads=4, qk_norm=true)+kernel(size=3)",))


def test_exports_give_the_same_logits_and_tokens(ask, tmp_path, small_model, small_tokenizer):
    models, text = {}, small_tokenizer.to_str()
    for number, mixers in enumerate([*((mixer,) for mixer in MIXERS), *HYBRIDS]):
        settings = {"norm": "rmsnorm", "channel_mixer": "swiglu"} if number % 2 else {}
        model = small_model(mixers=mixers, tied=number % 3 == 0, **settings)
        directory = export_hub(tmp_path / f"export-{number}", model, text)
        tokens = torch.randint(2, 400, (2, 20))  # no pad, which transformers would mask
        save_file({"tokens": tokens}, f"{directory}.tokens")
        models[directory] = model, tokens
    ask(HERE / "open_exports.py", *models)
    worst = 0.0
    for directory, (model, tokens) in models.items():
        found, expected = load_file(f"{directory}.found"), model(tokens)
        worst = max(worst, float((found["logits"] - expected).abs().max()))
        torch.testing.assert_close(found["logits"], expected, atol=1e-6, rtol=1e-6)
        assert torch.equal(found["generated"], arch.generate(model, tokens, 8, temperature=0))
        assert found["refused"] == 3
        assert found["ids"].tolist() == small_tokenizer.encode("Tom had a red ball.").ids
        assert torch.equal(load_pretrained(str(directory)).model(tokens), expected)
    print(f"logits differ by at most {worst:.1e}")
