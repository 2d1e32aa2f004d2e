"""The cache that is handed to a single layer of a transformers model, and what is written to it.

Nothing is known of a layer's attention: its keys and values are what it writes when it runs. They
are held against the cache that transformers itself makes before they are used.
"""

from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from arch.errors import ModelError

CHECKED = 5  # positions of a model, on which what its layers write is checked
TOLERANCE = 1e-4  # of its size: what two ways of computing it may differ by
DRAWN = 4  # times the width of a head: vectors whose keys are compared, position by position


class Runner(Protocol):
    """A model whose layers run one by one: `arch.pretrained.decoder.LayerRunner`."""

    model: Any
    kind: str
    layers: Any
    cached: bool
    cache_option: str

    def embed_positions(self, embeddings: Tensor, start: int) -> Tensor:
        """What the first layer reads."""
        ...

    def layer(self, number: int, x: Tensor, start: int = 0, memory: Any = None) -> Tensor:
        """Runs one layer."""
        ...


class Written(Exception):
    """Ends a layer's run when it has written its keys and values, which are the arguments."""


@cache
def cache_class() -> type[Any]:
    """The class of `make_cache`; made late, as it needs transformers."""
    from transformers import Cache

    class FixedCache(Cache):
        """Repeats what each prefix left for the candidates that go on from it."""

        def __init__(
            self, start: int, keys: Tensor | None, values: Tensor | None, ends: bool
        ) -> None:
            super().__init__(layers=[])
            self.start, self.keys, self.values, self.ends = start, keys, values, ends

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
            if self.ends:
                raise Written(key_states, value_states)
            if self.keys is not None and self.values is not None:
                times = len(key_states) // len(self.keys)
                key_states = torch.cat([repeat_rows(self.keys, times), key_states], dim=2)
                value_states = torch.cat([repeat_rows(self.values, times), value_states], dim=2)
            self.keys, self.values = key_states, value_states
            return key_states, value_states

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return self.start

        def get_query_offset(self, layer_idx: int = 0) -> int:
            return self.start

        def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
            return self.start + query_length, 0

        @property
        def is_compileable(self) -> bool:
            return False

    return FixedCache


def make_cache(
    start: int = 0, keys: Tensor | None = None, values: Tensor | None = None, ends: bool = False
) -> Any:
    """A transformers cache, of which one layer writes and reads one place.

    It holds `start` positions, keys and values `(P, heads, start, width)`. One that `ends` raises
    `Written` when it is written to.
    """
    return cache_class()(start, keys, values, ends)


def repeat_rows(x: Tensor, times: int) -> Tensor:
    """Each row `times` times; a single row without a copy."""
    return x.expand(times, *x.shape[1:]) if len(x) == 1 else x.repeat_interleave(times, dim=0)


class LayerCaches:
    """What each layer of a model writes to its cache."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._checked = False
        self._faults: dict[int, str] = {}
        self._turns: dict[tuple[int, int], Tensor] = {}

    def written(self, number: int, x: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Keys and values `(B, heads, T, width)` of a layer's input `(B, T, D)`.

        Raises:
            ModelError: the layer writes none.
        """
        try:
            self.runner.layer(number, x, start, make_cache(start, ends=True))
        except Written as written:
            keys, values = written.args
            if keys.dim() == values.dim() == 4 and keys.shape[2] == values.shape[2] == x.shape[1]:
                return keys, values
        raise ModelError("it writes none")

    def turns(self, number: int, length: int) -> Tensor:
        """What turns a head's key at each position to that at position 0, `(T, width, width)`.

        Measured on the keys of random vectors: position turns a key, whatever it is.

        Raises:
            ModelError: it does more than turn it.
        """
        if (number, length) not in self._turns:
            self._turns[number, length] = self._measure_turns(number, length)
        return self._turns[number, length]

    def check(self, number: int) -> None:
        """Compares what a layer writes with the cache that transformers makes.

        Raises:
            ModelError: they differ, or there are no keys and values.
        """
        if not self._checked:
            self._compare()
            self._checked = True
        if number in self._faults:
            raise ModelError(
                f"keys and values of a {self.runner.kind} are not known here "
                f"(layer {number + 1}: {self._faults[number]}); its hidden states are"
            )

    @torch.no_grad()
    def _measure_turns(self, number: int, length: int) -> Tensor:
        weight = self.runner.model.get_input_embeddings().weight
        chance = torch.Generator().manual_seed(0)
        drawn = torch.randn(2, weight.shape[1], generator=chance).to(weight)
        heads, width = self.written(number, drawn[:, None], 0)[0].shape[1::2]
        drawn = torch.randn(DRAWN * width // heads + 1, weight.shape[1], generator=chance)
        x = drawn.to(weight)[:, None].expand(-1, length, -1)
        keys = self.written(number, x, 0)[0].double()
        first = keys[:, :, 0]
        left, _, right = torch.linalg.svd(torch.einsum("nhtw,nhv->twv", keys, first))
        turns = left @ right
        off = torch.einsum("nhtw,twv->nhtv", keys, turns) - first[:, :, None]
        if not bool(off.norm() <= TOLERANCE * keys.norm()):
            raise ModelError(
                f"keys of a {self.runner.kind} differ between positions by more than a turn; these "
                "are not known here, its values and hidden states are"
            )
        return turns.to(weight.dtype)

    @torch.no_grad()
    def _compare(self) -> None:
        runner, model = self.runner, self.runner.model
        config, count = model.config.get_text_config(), len(self.runner.layers)
        if getattr(config, "kv_lora_rank", None):
            self._faults = dict.fromkeys(range(count), "it keeps latents of them")
            return
        if not runner.cached:
            self._faults = dict.fromkeys(range(count), "it keeps none")
            return
        embedding = model.get_input_embeddings()
        ids = torch.arange(CHECKED, device=embedding.weight.device)[None] % embedding.num_embeddings
        embeddings = embedding(ids)
        output = model(inputs_embeds=embeddings, use_cache=True)
        theirs = getattr(output, runner.cache_option)
        x = runner.embed_positions(embeddings, 0)
        for number in range(count):
            self._faults[number] = "what transformers keeps of them has another form"
            with suppress(AttributeError, IndexError, TypeError):
                held = theirs.layers[number]
                ours = self.written(number, x, 0)
                rows = held.keys.shape[2]
                if rows and all(
                    _agrees(mine[:, :, -rows:], kept)
                    for mine, kept in zip(ours, (held.keys, held.values), strict=True)
                ):
                    del self._faults[number]
            x = runner.layer(number, x, 0, make_cache())


def _agrees(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= TOLERANCE * b.abs().max())
