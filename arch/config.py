"""The description of a model: everything needed to build it, and nothing else."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from arch.errors import ModelError


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

    def __post_init__(self) -> None:
        """Checks every field; `mixers` may come as a list."""
        if isinstance(self.mixers, str):
            object.__setattr__(self, "mixers", (self.mixers,))
        object.__setattr__(self, "mixers", tuple(self.mixers))
        for name in ("vocab_size", "context", "d_model", "n_layers"):
            _positive(name, getattr(self, name))
        if self.d_ff is not None:
            _positive("d_ff", self.d_ff)
        if not self.mixers:
            raise ModelError("mixers is empty; give at least one, for example flat")
        if self.norm not in ("layernorm", "rmsnorm"):
            raise ModelError(f"norm is {self.norm!r}; allowed: layernorm, rmsnorm")
        if self.init not in ("default", "reference"):
            raise ModelError(f"init is {self.init!r}; allowed: default, reference")
        if self.embedding_std is not None and not self.embedding_std > 0:
            raise ModelError(f"embedding_std is {self.embedding_std!r}; it must be above 0")

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


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name} is {value!r}; it must be a whole number of at least 1")
