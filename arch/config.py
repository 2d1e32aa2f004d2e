"""The description of a model, everything needed to build it: plain data.

What a pattern of mixers says is checked where a model is built (`arch.patterns`).
"""

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from arch.errors import ModelError, check_count


@dataclass(frozen=True)
class ModelConfig:
    """A language model: an embedding, `n_layers` pre-norm blocks, a final norm and a head."""

    vocab_size: int = 4096
    """Number of tokens V."""
    context: int = 512
    """The most positions that the model can see; any shorter input runs unpadded."""
    d_model: int = 512
    """Width D of the residual stream."""
    n_layers: int = 8
    """Number of blocks."""
    mixers: tuple[str, ...] = ("flat",)
    """Token mixers, cycled over the depth: flat, attention(heads=4), attention+flat, ..."""
    channel_mixer: str = "gelu"
    """The per-position part: gelu or swiglu, with arguments where wanted: gelu(bias=false)."""
    d_ff: int | None = None
    """Width of the channel mixer's hidden layer; 4 * d_model when not given."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Norm before each part of a block, and at the end."""
    norm_eps: float = 1e-5
    """Added under the norm's root."""
    final_norm: bool = True
    """Whether a norm stands before the head."""
    tied: bool = False
    """Whether the head is the embedding's transpose."""
    init: Literal["default", "reference"] = "default"
    """Column of the initialisation table."""
    embedding_std: float | None = None
    """Standard deviation of the initial embedding; the table's own when not given."""
    vocab_multiple: int = 1
    """Multiple to which rows are added to the embedding and the head, that no token has: 64 suits
    a GPU's products. They are there in training only; a model that is loaded lacks them."""

    def __post_init__(self) -> None:
        if isinstance(self.mixers, str):
            object.__setattr__(self, "mixers", (self.mixers,))
        if not isinstance(self.mixers, list | tuple) or not self.mixers:
            raise ModelError(f"mixers is {self.mixers!r}; give a list, for example [flat]")
        object.__setattr__(self, "mixers", tuple(self.mixers))
        for name in ("vocab_size", "vocab_multiple", "context", "d_model", "n_layers"):
            check_count(name, getattr(self, name))
        if self.d_ff is not None:
            check_count("d_ff", self.d_ff)
        for entry in self.mixers:
            _text("mixers", entry)
        # YAML splits [attention(heads=4, qk_norm=true)] at the comma
        whole = re.split(r",\s*(?![^(]*\))", ", ".join(self.mixers))
        object.__setattr__(self, "mixers", tuple(whole))
        _text("channel_mixer", self.channel_mixer)
        _one_of("norm", self.norm, ("layernorm", "rmsnorm"))
        _one_of("init", self.init, ("default", "reference"))
        _one_of("final_norm", self.final_norm, (True, False))
        _one_of("tied", self.tied, (True, False))
        _above("norm_eps", self.norm_eps)
        if self.embedding_std is not None:
            _above("embedding_std", self.embedding_std)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head: `vocab_size`, and what `vocab_multiple` adds."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def hidden_width(self) -> int:
        """Width of the channel mixer's hidden layer."""
        return self.d_ff or 4 * self.d_model

    def to_json(self) -> str:
        """The configuration as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str, source: str = "config") -> "ModelConfig":
        """Reads what `to_json` wrote.

        Raises:
            ModelError: not JSON, unknown fields, or values that are not allowed.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ModelError(f"{source} is not JSON: {error}") from None
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known) if isinstance(fields, dict) else ["not an object"]
        if unknown:
            raise ModelError(
                f"{source} has unknown fields: {', '.join(unknown)}; "
                f"allowed: {', '.join(sorted(known))}"
            )
        return cls(**fields)


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ModelError(f"{name} holds {value!r}; write a name, for example flat or gelu")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if type(value) is not type(allowed[0]) or value not in allowed:
        raise ModelError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}")


def _above(name: str, value: object) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:  # pyright: ignore
        raise ModelError(f"{name} is {value!r}; it must be a number above 0")
