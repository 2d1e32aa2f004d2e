"""The description of a model, everything needed to build it: plain data.

What a pattern of mixers says is checked where a model is built (`arch.patterns`).
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from arch.errors import LARGEST, LETTERS, ModelError, check_count, printable, show_value

MOST = {"vocab_size": 2**26, "vocab_multiple": 2**16, "context": 2**24, "d_model": 2**18,
        "n_layers": 4096, "d_ff": 2**22}  # fmt: skip
"""What sizes may be, at most: a larger one is a mistake, and would take all memory."""


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
    """Feed-forward part of a block: gelu, silu or swiglu, or with arguments: gelu(bias=false)."""
    d_ff: int | None = None
    """Width of the channel mixer's hidden layer; 4 * d_model when not given."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Norm before each part of a block, and at the end."""
    norm_eps: float = 1e-5
    """Added under the square root of the norm."""
    final_norm: bool = True
    """Whether a norm stands before the head."""
    tied: bool = False
    """Whether the head is the embedding's transpose."""
    init: Literal["default", "reference"] = "default"
    """Initial weights: default, or reference for those of the published code."""
    embedding_std: float | None = None
    """Standard deviation of the initial embedding; that of `init` when not given."""
    vocab_multiple: int = 1
    """Pads the embedding and the head to a multiple of this number of rows, in training only: a
    GPU multiplies multiples of 64 faster. A model that is loaded lacks the added rows."""

    def __post_init__(self) -> None:
        if isinstance(self.mixers, str):
            object.__setattr__(self, "mixers", (self.mixers,))
        if not isinstance(self.mixers, list | tuple) or not self.mixers:
            given = show_value(self.mixers)
            raise ModelError(f"mixers is {given}; give a list, for example [flat]")
        for name, most in MOST.items():
            if (value := getattr(self, name)) is not None or name != "d_ff":
                check_count(name, value, most)
        for entry in self.mixers:
            _text("mixers", entry)
        object.__setattr__(self, "mixers", tuple(_join_arguments(self.mixers)))
        if len(self.mixers) > self.n_layers:
            raise ModelError(
                f"mixers has {len(self.mixers)} entries for n_layers={self.n_layers}; give one for "
                "each block, or fewer, which are repeated"
            )
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
        fields = parse_object(text, source)
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ModelError(
                f"{source} has unknown fields: {printable(', '.join(unknown), 200)}; "
                f"allowed: {', '.join(sorted(known))}"
            )
        try:
            return cls(**fields)
        except ModelError as error:
            raise ModelError(f"{source}: {error}") from None


class NameTwiceError(ValueError):
    """An object of JSON has a name twice, of which one value would be lost."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name[:80]!r} stands twice in an object")
        self.name = name


def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON by its pairs, for `json.loads`.

    Raises:
        NameTwiceError: a name stands in it twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise NameTwiceError(next(name for name in names if names.count(name) > 1))
    return found


def parse_object(text: str, source: str) -> dict[str, Any]:
    """The object that a JSON text holds.

    Raises:
        ModelError: not JSON, not an object, too deep, or a name that stands in it twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=read_pairs)
    except NameTwiceError as error:
        raise ModelError(f"{source} has {printable(error.name, 80)} twice") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{source} is not JSON: {printable(error, 120)}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{source} is not a JSON object")
    return value


def _join_arguments(entries: Iterable[str]) -> Iterator[str]:
    """Entries split at their commas, but for commas in brackets.

    YAML splits [attention(heads=4, qk_norm=true)] at the comma.
    """
    start, depth, text = 0, 0, ", ".join(entries)
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        given = show_value(value)
        raise ModelError(f"{name} holds {given}; write a name, for example flat or gelu")
    if len(value) > LETTERS:
        raise ModelError(f"{name} has an entry of {len(value)} letters; allowed: {LETTERS}")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if type(value) is not type(allowed[0]) or value not in allowed:
        given = show_value(value)
        raise ModelError(f"{name} is {given}; allowed: {', '.join(map(str, allowed))}")


def _above(name: str, value: object) -> None:
    if type(value) not in (int, float) or not 0 < value < LARGEST:  # pyright: ignore
        given = show_value(value)
        raise ModelError(f"{name} is {given}; it must be a number above 0, below {LARGEST:.2g}")
