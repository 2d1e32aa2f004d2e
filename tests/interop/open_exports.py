"""Run in the other environment: opens exports as a user does, and writes what they give.

python open_exports.py DIR ...    each with tokens.safetensors beside it, as DIR.tokens
"""

import sys
from importlib.util import find_spec
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

if __name__ == "__main__":
    assert not any(map(find_spec, ("eval", "tokenizer", "remnant"))), "remnant is installed here"
    for directory in sys.argv[1:]:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()
        tokens = load_file(f"{directory}.tokens")["tokens"]
        refused, padded = 0, torch.ones_like(tokens)
        padded[:, 0] = 0
        for options in (
            {"use_cache": True},
            {"past_key_values": DynamicCache()},
            {"attention_mask": padded},
        ):
            try:
                model(tokens, **options)
            except ValueError as error:
                refused += "\n" not in str(error)
        with torch.no_grad():
            found = {
                "logits": model(tokens).logits,
                "generated": model.generate(tokens, max_new_tokens=8, do_sample=False),
                "refused": torch.tensor(refused),
            }
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
        found["ids"] = torch.tensor(tokenizer("Tom had a red ball.")["input_ids"])
        save_file(found, f"{directory}.found")
