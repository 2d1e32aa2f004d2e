"""The configuration of a model of remnant, for transformers. Needs nothing but transformers."""

from typing import Any

from transformers import PreTrainedConfig


class RemnantConfig(PreTrainedConfig):
    """Embedding, pre-norm blocks of a token mixer and a channel mixer, final norm, head.

    Args:
        vocab_size: tokens V.
        hidden_size: width D of the residual stream.
        intermediate_size: width of the channel mixer's hidden layer.
        num_hidden_layers: blocks.
        max_position_embeddings: the most positions that the model can see.
        mixers: token mixers as patterns, cycled over the depth: `attention(heads=4)+flat`.
        channel_mixer: `gelu`, `silu` or `swiglu`, with arguments where wanted: `gelu(bias=false)`.
        norm: `layernorm` or `rmsnorm`.
        norm_eps: added under the norm's root.
        final_norm: whether a norm stands before the head.
        tie_word_embeddings: whether the head is the embedding's transpose.
        use_cache: false; the model keeps no cache.
        **kwargs: of `PreTrainedConfig`.
    """

    model_type = "remnant"

    def __init__(
        self,
        vocab_size: int = 4096,
        hidden_size: int = 512,
        intermediate_size: int = 2048,
        num_hidden_layers: int = 8,
        max_position_embeddings: int = 512,
        mixers: list[str] | None = None,
        channel_mixer: str = "gelu",
        norm: str = "layernorm",
        norm_eps: float = 1e-5,
        final_norm: bool = True,
        tie_word_embeddings: bool = False,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.max_position_embeddings = max_position_embeddings
        self.mixers = mixers or ["flat"]
        self.channel_mixer = channel_mixer
        self.norm, self.norm_eps, self.final_norm = norm, norm_eps, final_norm
        self.tie_word_embeddings, self.use_cache = tie_word_embeddings, use_cache
        super().__init__(**kwargs)
