"""Any causal model of transformers behind our contract, by hooks on its own layers.

Nothing is known of a layer but that it takes a stream and returns one: a block here is a whole
layer. What else the model's body hands to its layers (masks, positions, biases of attention) is
taken from the body itself, run with its layers stepped over. `prefix` remembers keys and values
where the layers keep them in a transformers cache, the layer's inputs where they keep anything
else.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from arch.config import ModelConfig
from arch.errors import ModelError
from arch.mixers.base import TokenMixer
from arch.model import Block, LanguageModel
from arch.pretrained.layer_cache import LayerCaches, cache_class, make_cache, repeat_rows

LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "context_length",
           "max_seq_len")  # fmt: skip
UNLIMITED = 2048  # positions, of models whose configuration sets no limit
CHECKED = 8  # tokens on which an opened model is checked
SHAPES = 2  # of streams, whose layers' arguments are remembered
EXACT = 1e-3  # of the stream's size: what two ways of computing it may differ by
HALF = 5e-2  # of the logits' size, in half precision


class LayerArguments(NamedTuple):
    """What the body hands to one layer beside the stream."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


class LayerRunner:
    """A transformers causal model, in evaluation mode, whose layers can be stepped over.

    Raises:
        ModelError: it is no decoder with one list of layers, or does not take embeddings.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.kind = model.config.model_type
        if getattr(model.config, "is_encoder_decoder", False):
            raise ModelError(f"{self.kind} is an encoder and a decoder; give a decoder-only model")
        options = inspect.signature(model.forward).parameters
        if "inputs_embeds" not in options:
            raise ModelError(f"{self.kind} does not take embeddings; give a model that does")
        # Since transformers 5.24 the argument is `cache`.
        self.cache_option = next((n for n in ("cache", "past_key_values") if n in options), "")
        self.cached = bool(self.cache_option)
        count = model.config.get_text_config().num_hidden_layers
        body = getattr(model, "get_decoder", lambda: model)()  # not what reads pictures
        stacks = [
            part
            for whole in (body, model)  # what some families call their decoder is a head
            for part in whole.modules()
            if isinstance(part, nn.ModuleList) and len(part) == count
        ]
        if not stacks:
            raise ModelError(f"{self.kind} has no list of its {count} layers; it cannot be opened")
        self.layers: Sequence[nn.Module] = list(stacks[0])
        self._given: dict[tuple[Any, ...], list[LayerArguments]] = {}
        self._rest: list[tuple[Any, ...] | None] = [None] * count
        self.norm = self._find_norm()
        self.caches = LayerCaches(self)

    def embed_positions(self, embeddings: Tensor, start: int) -> Tensor:
        """What the first layer reads of `(B, T, D)` embeddings at positions start ... start + T."""
        return self._step_over(embeddings, start)[0]

    @torch.no_grad()
    def scaled(self, embedding: nn.Embedding) -> nn.Embedding:
        """Rows multiplied by a scale that the body gives to those of token ids alone.

        As Falcon-H1's does, and not to embeddings that it is given.
        """
        seen: list[Tensor] = []

        def note(number: int, x: Tensor, rest: LayerArguments) -> Tensor:
            if x.shape[-1] != embedding.embedding_dim:
                raise ModelError(
                    f"{self.kind} has an embedding {embedding.embedding_dim} wide and a stream "
                    f"{x.shape[-1]} wide; it cannot be opened, as both must have one width"
                )
            seen.append(x.flatten().float())
            raise StopForward

        ids = torch.arange(min(CHECKED, embedding.num_embeddings), device=self.model.device)[None]
        for given in ({"input_ids": ids}, {"inputs_embeds": embedding(ids)}):
            with self._stepped_over(note), suppress(StopForward):
                self.model(**given, use_cache=False)
        if len(seen) < 2 or _agrees(seen[0], seen[1]):
            return embedding
        scale = seen[0] @ seen[1] / (seen[1] @ seen[1])
        return nn.Embedding.from_pretrained(embedding.weight * scale, freeze=True)

    def layer(self, number: int, x: Tensor, start: int = 0, memory: Any = None) -> Tensor:
        """A layer's output of `(B, T, D)` at positions start ... start + T.

        `memory` stands for the cache that the body hands to its layers.
        """
        shape = (*x.shape, x.dtype, x.device, start, self.cached)
        if shape not in self._given:
            if len(self._given) == SHAPES:
                self._given.clear()
            with torch.no_grad():
                self._given[shape] = self._step_over(x.new_zeros(()).expand(x.shape), start)[1]
        given, kind = self._given[shape][number], cache_class()
        arguments = [memory if isinstance(v, kind) else v for v in given.arguments]
        options = {k: memory if isinstance(v, kind) else v for k, v in given.options.items()}
        return _stream(self.layers[number](x, *arguments, **options))

    def logits(self, hidden: Tensor) -> Tensor:
        """The last layer's output `(B, T, D)` to next-token logits `(B, T, V)`."""
        with self._stepped_over(lambda number, x, _: hidden):
            return self._run(torch.zeros_like(hidden), 0)

    def _run(self, embeddings: Tensor, start: int) -> Tensor:
        options: dict[str, Any] = {"use_cache": self.cached}
        if self.cached:
            options[self.cache_option] = make_cache(start)
        return self.model(inputs_embeds=embeddings, **options).logits

    def _step_over(self, embeddings: Tensor, start: int) -> tuple[Tensor, list[LayerArguments]]:
        """The first layer's input, and what each layer is given beside the stream."""
        seen: list[Tensor] = []
        given: list[LayerArguments] = []

        def note(number: int, x: Tensor, rest: LayerArguments) -> Tensor:
            seen.append(x)
            given.append(rest)
            if number == len(self.layers) - 1:
                raise StopForward
            return x

        with self._stepped_over(note), suppress(StopForward):
            self._run(embeddings, start)
        return seen[0], given

    @contextmanager
    def _stepped_over(
        self, answer: Callable[[int, Tensor, LayerArguments], Tensor]
    ) -> Iterator[None]:
        """The body's layers return what `answer` says instead of computing."""

        def forward(number: int, *arguments: Any, **options: Any) -> Any:
            x, *more = arguments or (options.pop("hidden_states"),)
            output = answer(number, x, LayerArguments(tuple(more), options))
            rest = self._rest[number]
            return output if rest is None else (output, *rest)

        own = [vars(layer).get("forward") for layer in self.layers]  # of a layer that was changed
        for number, layer in enumerate(self.layers):
            layer.forward = partial(forward, number)
        try:
            yield
        finally:
            for layer, held in zip(self.layers, own, strict=True):
                vars(layer).pop("forward", None)
                if held is not None:
                    layer.forward = held

    @torch.no_grad()  # what layers return is remembered, and copied with the model
    def _find_norm(self) -> nn.Module:
        """Runs the model once: what layers return beside the stream, and the norm after them."""
        outputs: dict[int, Any] = {}
        after: list[nn.Module] = []
        last = len(self.layers) - 1

        def follow(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if last in outputs and arguments and arguments[0] is _stream(outputs[last]):
                after.append(module)

        def remember(number: int) -> Any:
            return lambda module, arguments, output: outputs.update({number: output})

        parts = [m for m in self.model.modules() if not list(m.children())]
        hooks = [m.register_forward_hook(remember(i)) for i, m in enumerate(self.layers)]
        hooks += [m.register_forward_pre_hook(follow) for m in parts]
        try:
            ids = torch.zeros(1, 2, dtype=torch.long, device=self.model.device)
            self.model(inputs_embeds=self.model.get_input_embeddings()(ids), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        if len(outputs) <= last:
            raise ModelError(f"{self.kind} does not run all of its layers; it cannot be opened")
        for number, output in outputs.items():
            self._rest[number] = tuple(output[1:]) if isinstance(output, tuple) else None
        return after[0] if after else nn.Identity()


class WholeLayer(TokenMixer):
    """A layer of a transformers model, its residuals and norms included."""

    def __init__(self, runner: LayerRunner, number: int) -> None:
        super().__init__()
        self.layer, self.number, self.runner = runner.layers[number], number, runner

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        memory = make_cache() if self.runner.cached else None
        return self.runner.layer(self.number, x, memory=memory)

    def prefix(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Keys and values are remembered, or the inputs where the layer has none."""
        if not self.runner.cached:
            return super().prefix(x, state)
        memory = make_cache(*state or ())
        y = self.runner.layer(self.number, x, memory.start, memory)
        return y, (memory.start + x.shape[1], memory.keys, memory.values)

    def step(self, x: Tensor, state: Any) -> Tensor:
        """`(N, S, D) -> (N, S, D)`."""
        if self.runner.cached:
            return self.runner.layer(self.number, x, state[0], make_cache(*state))
        before = repeat_rows(state, len(x) // len(state))
        return self(torch.cat([before, x], dim=1))[:, -x.shape[1] :]


class WholeBlock(Block):
    """A block of one part: the layer itself."""

    def __init__(self, layer: WholeLayer) -> None:
        super().__init__(nn.Identity(), layer, nn.Identity(), nn.Identity())

    def combine(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output, which holds its input already."""
        return self.site("block", mixed)


@dataclass(frozen=True)
class PretrainedConfig(ModelConfig):
    """Describes a wrapped model; cannot build one. Its one mixer is the family's name."""

    def __post_init__(self) -> None:
        """Nothing to check: transformers did."""


def describe_pretrained(model: LanguageModel, kind: str, context: int) -> PretrainedConfig:
    """The configuration of a wrapped model of this family, with norms like its last one."""
    return PretrainedConfig(
        vocab_size=model.embedding.num_embeddings,
        context=context,
        d_model=model.embedding.embedding_dim,
        n_layers=len(model.blocks),
        mixers=(kind,),
        channel_mixer=kind,
        norm="layernorm" if isinstance(model.norm, nn.LayerNorm) else "rmsnorm",
        tied=model.head.weight is model.embedding.weight,
    )


class Decoder(LanguageModel):
    """A transformers causal model as a `LanguageModel`, around the same weights.

    It is put into evaluation mode, and checked on a few tokens.

    Raises:
        ModelError: no decoder, not causal, or its streams and logits are not those of its parts.
    """

    def __init__(self, model: Any) -> None:
        nn.Module.__init__(self)  # the parts are there already: build none
        self.runner = LayerRunner(model.eval())
        self.whole = model
        self.embedding = self.runner.scaled(_rows(model.get_input_embeddings()))
        self.blocks = nn.ModuleList(
            WholeBlock(WholeLayer(self.runner, i)) for i in range(len(self.runner.layers))
        )
        self.norm, self.head = self.runner.norm, model.get_output_embeddings()
        if self.head is None:
            raise ModelError(
                f"{self.runner.kind} has no head to logits; give a causal language model"
            )
        context = _context(model.config.get_text_config())
        self.config = describe_pretrained(self, self.runner.kind, context)
        _check(self)

    def with_positions(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """What the first layer reads: with positions, a norm or a scale, as the model has them."""
        return self.runner.embed_positions(embeddings, start)

    def logits(self, hidden: Tensor) -> Tensor:
        """The last layer's output to next-token logits, `(B, T, D) -> (B, T, V)`."""
        # Each stands alone: together they may be more than the model has positions.
        read = self.runner.logits(hidden.reshape(-1, 1, hidden.shape[-1]))
        read = read[..., : self.config.vocab_size]
        return read.reshape(*hidden.shape[:-1], -1)


def _context(config: Any) -> int:
    """The most positions for which the angles do not depend on the length of the text."""
    rope = getattr(config, "rope_parameters", None) or {}
    sections = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # one a kind
    name = "original_max_position_embeddings"
    long = [p[name] for p in sections if p.get("rope_type") == "longrope" and name in p]
    limits = (getattr(config, name, None) for name in LENGTHS)
    return min([*map(int, long), next((n for n in limits if n), UNLIMITED)])


class StopForward(Exception):
    """Ends a run of the body at the last layer that is needed."""


def _rows(embedding: Any) -> nn.Embedding:
    """The embedding as rows of a matrix, multiplied by the scale that a model gives to them."""
    ids = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    first = ids[:2]
    if torch.equal(embedding(first), embedding.weight[first]):
        return embedding
    with torch.no_grad():
        return nn.Embedding.from_pretrained(embedding(ids), freeze=True)


def _stream(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def _check(model: Decoder) -> None:
    """Compares the parts with the whole on a few tokens.

    Raises:
        ModelError: what the parts give is not what the model gives, or a later token changes it.
    """
    runner, tokens = model.runner, _few_tokens(model)
    embeddings = model.embed(tokens)
    whole = runner.model(inputs_embeds=embeddings, use_cache=False).logits
    if not _agrees(whole, runner.model(input_ids=tokens, use_cache=False).logits):
        raise ModelError(
            f"{runner.kind} makes other logits of token ids than of their embeddings; it cannot be "
            "opened"
        )
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % model.embedding.num_embeddings
    after = runner.model(inputs_embeds=model.embed(changed), use_cache=False).logits
    if not _agrees(after[:, :-1], whole[:, :-1]):
        raise ModelError(f"{runner.kind} is not causal: a later token changes earlier outputs")
    for cached in (True, False) if runner.cached else (False,):
        runner.cached = cached
        # An error, too, says that the layers keep something else than keys and values.
        with suppress(AttributeError, IndexError, TypeError, ValueError, RuntimeError):
            if _agrees(model(tokens), whole) and _resumes(model, embeddings):
                return
    raise ModelError(
        f"{runner.kind}: its layers, one by one, are not the model; it cannot be opened"
    )


@torch.no_grad()
def is_whole(model: LanguageModel, whole: Any) -> bool:
    """Whether parts of a transformers model give its logits, on a few tokens."""
    tokens = _few_tokens(model)
    expected, found = whole(tokens, use_cache=False).logits, model(tokens)
    return _agrees(found, expected, EXACT if torch.finfo(found.dtype).bits > 16 else HALF)


def _resumes(model: Decoder, embeddings: Tensor) -> bool:
    """Whether `prefix` and `step` give what whole sequences give."""
    depth, half = len(model.blocks), embeddings.shape[1] // 2
    whole = model.hidden(embeddings, depth)
    first, state = model.prefix(embeddings[:, :half])
    second, _ = model.prefix(embeddings[:, half:], state)
    candidates = embeddings[:, half:].repeat_interleave(3, dim=0)
    stepped = model.step(candidates, state)[::3]
    return _agrees(torch.cat([first, second], dim=1), whole) and _agrees(stepped, whole[:, half:])


def _few_tokens(model: LanguageModel) -> Tensor:
    """Two texts of `CHECKED` tokens, `(2, T)`."""
    T, device = min(CHECKED, model.config.context), model.embedding.weight.device
    return (torch.arange(2 * T, device=device).view(2, T) * 7 + 1) % model.embedding.num_embeddings


def _agrees(a: Tensor, b: Tensor, bound: float = EXACT) -> bool:
    return bool((a - b).abs().max() <= bound * b.abs().max().clamp(min=1.0)) and bool(
        a.isfinite().all()
    )
