"""transformers' own Llama, of the shape of one of ours."""

from typing import Any

from torch import nn


def llama(
    vocab_size: int, length: int, width: int, layers: int, d_ff: int, heads: int = 4
) -> nn.Module:
    """An untrained `LlamaForCausalLM` with transformers' defaults in all that has no size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
    }
    # None of its special tokens is one of ours; the cache is no use in training.
    special: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**sizes, **special, use_cache=False))
