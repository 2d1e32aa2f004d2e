"""A site of a model, such as the outputs of a layer, as a function of embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from arch import Block, LanguageModel, State, embedding_scale
from arch.errors import ModelError
from arch.mixers import CausalAttention
from arch.pretrained.decoder import WholeBlock, WholeLayer
from eval.messages import ArgumentError, RequestError

PARTS = {
    "block": "the stream after the whole block",
    "mixer": "the token mixer's output alone",
    "stream": "the stream after the token mixer, before the channel mixer",
    "key": "the keys of attention, heads side by side, before the rotary embedding",
    "rotated_key": "the same after it, as a cache holds them",
    "value": "the values of attention, heads side by side",
    "final": "the stream after the last block and the norm behind it",
}
CACHED = ("key", "rotated_key", "value")
"""Parts that a key/value cache holds, which only attention has."""
OF_EMBEDDING = ("block", "final")
"""Parts that layer 0 has."""
WHOLE = (*OF_EMBEDDING, *CACHED)
"""Parts that are known where a block is a whole layer of transformers."""
ABLATIONS = {
    "residual": "the residual around the token mixer",
    "norms": "both norms of a block",
    "channel": "the channel mixer with its residual",
    "mask": "the causal mask of attention",
}
"""What can be left out of every block. Without the first three, token mixers stand alone."""

Mix = Callable[[int, nn.Module, Tensor], Tensor]
"""Block number, token mixer and its input to the mixer's output."""


@dataclass(frozen=True)
class Circuit:
    """Sites of a frozen model, with parts of its blocks left out if wished.

    The model computes in its own precision. Inputs and outputs are in fp32 at least, and so are
    distances, inverses and descents, whatever the model's weights.

    Args:
        model: in evaluation mode, its parameters without gradient.
        layers: one or several, from 0 (the embedding itself) to the number of blocks; the features
            of several are joined, so that the output has D of them for each.
        part: one of `PARTS`, of each layer's block.
        without: some of `ABLATIONS`.

    Raises:
        RequestError: a layer, part or ablation that does not exist or does not fit the model.
    """

    model: LanguageModel
    layers: int | Sequence[int]
    part: str = "block"
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        numbers = (self.layers,) if isinstance(self.layers, int) else tuple(self.layers)
        object.__setattr__(self, "layers", numbers)
        depth = len(self.model.blocks)
        for layer in numbers:
            if not 0 <= layer <= depth:
                raise ArgumentError("layer", f"must be 0 (the embedding) to {depth}", layer)
        if self.part not in PARTS:
            raise ArgumentError("part", f"must be one of {', '.join(PARTS)}", repr(self.part))
        for name in self.without:
            if name not in ABLATIONS:
                raise RequestError(
                    f"--without {name}: nothing of that name; use some of {', '.join(ABLATIONS)}"
                )
        if 0 in numbers and self.part not in OF_EMBEDDING:
            said = "layer 0, the embedding, has none; give layer 1 or more"
            raise ArgumentError("part", said, repr(self.part))
        if self.part in CACHED:
            self._require_attention()
        if self.part == "final":
            self._require_norm()
        self._require_parts([self._block(i) for i in range(self.depth)])

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The layers as a tuple, also of a single one."""
        assert isinstance(self.layers, tuple)
        return self.layers

    @property
    def name(self) -> str:
        """Part and layers, as `block.3`, or `block.1+4` of two that are joined."""
        return f"{self.part}.{'+'.join(map(str, self.layer_numbers))}"

    @property
    def depth(self) -> int:
        """How many blocks have to run."""
        return max(self.layer_numbers)

    @property
    def causal(self) -> bool:
        """Whether an output depends on the tokens up to its own position only."""
        return "mask" not in self.without

    @property
    def width(self) -> int:
        """Features of an output."""
        return sum(self.widths)

    @cached_property
    def widths(self) -> list[int]:
        """Features of each layer's output; keys and values have some for each head of a layer."""
        if self.part not in CACHED:
            return [self.model.config.d_model] * len(self.layer_numbers)
        x = self.model.embedding.weight[:1, None]
        return [self._cached(self._block(n - 1), x, 0).shape[-1] for n in self.layer_numbers]

    def __call__(self, embeddings: Tensor) -> Tensor:
        """`(B, T, D)` embeddings to the site's `(B, T, width)` outputs."""
        return self._walk(embeddings, self._mix_whole, 0)

    @torch.no_grad()
    def of_tokens(self, tokens: Tensor) -> Tensor:
        """`(B, T)` token ids to the site's outputs, without gradient."""
        return self(self.model.embed(tokens))

    def embed(self, tokens: Tensor) -> Tensor:
        """`(B, T)` token ids to their embeddings, `(B, T, D)`, in fp32 at least."""
        return widened(self.model.embed(tokens))

    def prefix(self, tokens: Tensor, state: State | None = None) -> State:
        """The state after P more rows of tokens, `(P, T)`; None is the state of nothing."""
        return self.extend(tokens, state)[1]

    @torch.no_grad()
    def extend(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The site's outputs at the new positions, `(P, T, width)`, and the state of `prefix`."""
        self._require_causal()
        start, after = state.length if state else 0, []

        def mix(i: int, mixer: Any, x: Tensor) -> Tensor:
            y, remembered = mixer.prefix(x, state.blocks[i] if state else None)
            after.append(remembered)
            return y

        outputs = self._walk(self.model.embed(tokens), mix, start)
        return outputs, State(tuple(after), start + tokens.shape[1])

    def step(self, embeddings: Tensor, state: State | None) -> Tensor:
        """The site's outputs of N candidates' next S positions, `(N, S, width)`.

        The state's batch P divides N; the candidates of one prefix stand together.
        """
        if state is None:
            return self(embeddings)
        self._require_causal()

        def mix(i: int, mixer: Any, x: Tensor) -> Tensor:
            return mixer.step(x, state.blocks[i])

        return self._walk(embeddings, mix, state.length)

    @cached_property
    def vocabulary(self) -> Tensor:
        """The embedding matrix, `(V, D)`, in fp32 at least."""
        return self.model.keep("vocabulary", lambda: widened(self.model.embedding.weight.detach()))

    @cached_property
    def centred_vocabulary(self) -> tuple[Tensor, Tensor]:
        """The mean of the embeddings, `(D,)`, and the embedding matrix less that, `(V, D)`."""

        def centre() -> tuple[Tensor, Tensor]:
            mean = self.vocabulary.mean(dim=0)
            return mean, self.vocabulary - mean

        return self.model.keep("centred vocabulary", centre)

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the embedding's entries: the model's own unit of length."""
        return embedding_scale(self.model)

    @cached_property
    def pseudo_inverse(self) -> Tensor:
        """The embedding's Moore-Penrose inverse, `(D, V)`, which turns a vector into tokens."""
        return self.model.keep("pseudo-inverse", lambda: torch.linalg.pinv(self.vocabulary))

    def unrotated(self, values: Tensor) -> tuple["Circuit", Tensor]:
        """The site before the rotation, and its keys from rotated ones; other sites as they are.

        A turn changes no distance, and before it all positions are alike.
        """
        if self.part != "rotated_key":
            return self, values
        turned = []
        parts = values.split(self.widths, -1)
        for layer, of_layer in zip(self.layer_numbers, parts, strict=True):
            mixer: Any = self._block(layer - 1).token_mixer
            if isinstance(mixer, WholeLayer):
                turns = mixer.runner.caches.turns(layer - 1, of_layer.shape[1]).to(of_layer)
                heads = of_layer.unflatten(-1, (-1, turns.shape[-1]))
                turned.append(torch.einsum("bthw,twv->bthv", heads, turns).flatten(2))
                continue
            _, keys, _ = mixer.project(self.model.embedding.weight[:1, None])
            heads = of_layer.unflatten(-1, keys.shape[2:])
            turned.append(mixer.unrotate(heads, 0).flatten(2))
        return replace(self, part="key"), torch.cat(turned, dim=-1)

    def _require_attention(self) -> None:
        for layer in self.layer_numbers:
            mixer = self._block(layer - 1).token_mixer
            if isinstance(mixer, WholeLayer):
                try:
                    mixer.runner.caches.check(layer - 1)
                except ModelError as error:
                    raise ArgumentError("part", f"{error}", repr(self.part)) from None
            elif not isinstance(mixer, CausalAttention):
                raise RequestError(
                    f"part {self.part!r} of layer {layer}: a {type(mixer).__name__} has none; only "
                    "attention has keys and values"
                )

    def _require_norm(self) -> None:
        depth = len(self.model.blocks)
        if self.layer_numbers != (depth,):
            layers = "+".join(map(str, self.layer_numbers))
            raise RequestError(
                f"part 'final' of layer {layers}: only the last layer, {depth}, has it; give that"
            )
        if "norm" not in type(self.model.norm).__name__.lower():
            raise RequestError(
                f"part 'final': no norm stands behind the last layer of this "
                f"{self.model.config.mixers[0]} model; use block"
            )

    def _require_parts(self, blocks: Sequence[Block]) -> None:
        whole = any(isinstance(block, WholeBlock) for block in blocks)
        if whole and (self.part not in WHOLE or self.without - {"mask"}):
            raise RequestError(
                f"part {self.part!r} without {sorted(self.without)}: of a "
                f"{self.model.config.mixers[0]} model whole blocks are known, not their parts; use "
                f"one of {', '.join(WHOLE)}, and leave out nothing"
            )
        for block in blocks if "mask" in self.without else ():
            if not hasattr(block.token_mixer, "unmasked"):
                raise RequestError(
                    f"--without mask: a {type(block.token_mixer).__name__} has no mask to leave"
                    " out; only attention has"
                )

    def _require_causal(self) -> None:
        if not self.causal:
            raise RequestError(
                "--without mask: every output depends on every token, so tokens cannot be searched "
                "left to right; use a gradient solver"
            )

    def _walk(self, embeddings: Tensor, mix: Mix, start: int) -> Tensor:
        (outputs,) = _walk_together([self], [len(embeddings)], embeddings, mix, start)
        return outputs

    def _mix_whole(self, i: int, mixer: Any, x: Tensor) -> Tensor:
        return mixer(x) if self.causal else mixer.unmasked(x)

    def _block(self, i: int) -> Block:
        return self.model.blocks[i]  # pyright: ignore[reportReturnType]

    def _cached(self, block: Block, x: Tensor, start: int) -> Tensor:
        """What attention remembers of a block's input, `(N, T, D)` to `(N, T, width)`."""
        mixer = block.token_mixer
        if isinstance(mixer, WholeLayer):
            N, T, _ = x.shape
            if self.part == "key":  # as at position 0, which turns nothing
                x, start = x.reshape(N * T, 1, -1), 0
            held = mixer.runner.caches.written(mixer.number, x, start)[self.part == "value"]
            return held.transpose(1, 2).reshape(N, T, -1)
        assert isinstance(mixer, CausalAttention)
        _, keys, values = mixer.project(x if "norms" in self.without else block.norm_token(x))
        if self.part == "rotated_key":
            keys = mixer.rotate(keys, start)
        return (values if self.part == "value" else keys).flatten(2)

    def _run(self, i: int, x: Tensor, mix: Mix, start: int) -> dict[str, Tensor]:
        """Block i, every part's output by name."""
        block = self._block(i)
        bare = "norms" in self.without
        mixed = block.site("mixer", mix(i, block.token_mixer, x if bare else block.norm_token(x)))
        outputs = {"mixer": mixed}
        if self.part in CACHED and isinstance(block.token_mixer, CausalAttention | WholeLayer):
            outputs[self.part] = self._cached(block, x, start)
        if self.part != "stream" and not self.without - {"mask"}:  # else not its own `combine`
            return outputs | {"block": block.combine(x, mixed)}
        stream = block.site("stream", mixed if "residual" in self.without else x + mixed)
        if "channel" in self.without:
            return outputs | {"stream": stream, "block": block.site("block", stream)}
        changed = block.channel_mixer(stream if bare else block.norm_channel(stream))
        return outputs | {"stream": stream, "block": block.site("block", stream + changed)}


def step_together(circuits: list[Circuit], embeddings: Tensor, state: State | None) -> list[Tensor]:
    """One more position of several circuits' candidates, in a single pass of their model.

    Args:
        circuits: L that differ in their layers only, in any order.
        embeddings: K candidates of each circuit for each of P prefixes, `(L, P, K, D)`; they leave
            the pass when their circuit's deepest layer is reached.
        state: of the prefixes; None at the first position.

    Returns:
        `(P, K, width)` of each circuit.
    """
    order = sorted(range(len(circuits)), key=lambda i: circuits[i].depth)
    chosen = [circuits[i] for i in order]
    _, P, K, D = embeddings.shape

    def mix(i: int, mixer: Any, x: Tensor) -> Tensor:
        if state is None:
            return mixer(x)
        by_prefix = x.view(-1, P, K, D).transpose(0, 1).reshape(-1, 1, D)
        y = mixer.step(by_prefix, state.blocks[i])
        return y.view(P, -1, K, D).transpose(0, 1).reshape(-1, 1, D)

    x, start = embeddings[order].reshape(-1, 1, D), state.length if state else 0
    outputs = _walk_together(chosen, [P * K] * len(order), x, mix, start)
    return [outputs[order.index(i)].view(P, K, -1) for i in range(len(order))]


def join(circuits: Sequence[Circuit]) -> tuple[Circuit, Callable[[Tensor], list[Tensor]]]:
    """One circuit with all layers of several that differ in their layers only.

    The function beside it cuts its `(..., width)` outputs into those of each.
    """
    layers = sorted({layer for circuit in circuits for layer in circuit.layer_numbers})
    whole = replace(circuits[0], layers=layers)

    def cut(outputs: Tensor) -> list[Tensor]:
        by_layer = dict(zip(layers, outputs.split(whole.widths, dim=-1), strict=True))
        parts = [[by_layer[layer] for layer in circuit.layer_numbers] for circuit in circuits]
        return [part[0] if len(part) == 1 else torch.cat(part, dim=-1) for part in parts]

    return whole, cut


def _walk_together(
    circuits: list[Circuit], rows: list[int], embeddings: Tensor, mix: Mix, start: int
) -> list[Tensor]:
    """The outputs of circuits, the deepest last; each has so many `rows` of the batch, in turn."""
    taken: list[list[Tensor]] = [[] for _ in circuits]
    x, first = _enter(circuits[-1].model, embeddings, start), 0  # first: whose rows lead the batch
    by_part = dict.fromkeys(PARTS, embeddings)
    for depth in range(circuits[-1].depth + 1):
        if depth:
            by_part = circuits[-1]._run(depth - 1, x, mix, start)
            x = by_part["block"]
            if circuits[-1].part == "final" and depth == circuits[-1].depth:
                by_part["final"] = circuits[-1].model.norm(x)
        of_site = by_part.get(circuits[-1].part, x)  # a hybrid's other layers have no keys
        outputs = of_site.split(rows[first:])
        for parts, circuit, output in zip(taken[first:], circuits[first:], outputs, strict=True):
            if depth in circuit.layer_numbers:
                parts.append(output)
        while first < len(circuits) and circuits[first].depth == depth:
            x = x[rows[first] :]
            first += 1
    return [widened(torch.cat(parts, dim=-1)) for parts in taken]


def precision(model: LanguageModel) -> torch.dtype:
    """The lowest precision of a model's floating-point parameters."""
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps)


def uncertified(model: LanguageModel) -> str | None:
    """Why no answer about a model can be proved; None where it can.

    Below float32 the rounding floor is so high that wrong tokens lie within it.
    """
    kind = precision(model)
    if torch.finfo(kind).eps <= torch.finfo(torch.float32).eps:
        return None
    return f"weights in {str(kind).removeprefix('torch.')}: no certificate below float32"


def widened(x: Tensor) -> Tensor:
    """In fp32, or as it is if it is no less precise."""
    return x.float() if torch.finfo(x.dtype).bits < 32 else x


def _enter(model: LanguageModel, embeddings: Tensor, start: int) -> Tensor:
    end, context = start + embeddings.shape[1], model.config.context
    if end > context:
        raise RequestError(f"{end} positions are longer than the model's context of {context}")
    return model.with_positions(embeddings.to(model.embedding.weight.dtype), start)
