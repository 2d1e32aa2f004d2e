"""What is asked of models: one grid of questions, by flags, by a suite's entry or from Python.

Its fields are the flags of `eval invert`, whose help has no use for torch: methods import late.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from eval.messages import RequestError, say_once
from eval.rows.schema import SHUFFLED

if TYPE_CHECKING:
    from eval.inversion.solver import Solver
    from eval.models.checkpoint import Checkpoint
    from eval.models.text import Prompt
    from eval.sites.site import Site
    from eval.sites.slices import Slice

LEAST = {"count": 1, "length": 1, "pad_to": 1, "skip": 0, "seeds": 0, "noise": 0}
"""Of fields that are numbers, the least that is allowed."""


@dataclass(frozen=True)
class Inversion:
    """Each solver is asked about each layer, part, slice, seed and noise of each prompt.

    Args:
        layers: all, last, or numbers; 0 is the embedding; 1+4 shows layers 1 and 4 together;
            default: the suite's, else all
        parts: parts of a layer: block, mixer, stream, key, rotated_key, value, final; default:
            block
        without: ablations: leave residual, norms, channel or mask out of every block
        slices: outputs (B, T, D) that are shown, as in '[:, 3:, :]', '[:, :3+4:, :]' or '[:, :,
            :16]'; default: the suite's, else all of them
        solvers: solvers to ask, as in adam sweep alternating; `python -m eval solvers` lists them
        set_: settings of solvers, as in adam.steps=500; needs --solvers
        seeds: seeds of the solvers; default: 0
        noise: standard deviation of the noise added to the outputs, in units of their root mean
            square; default: 0
        controls: controls to ask as well: shuffled, identity, scale=NUMBER, embedding=DIR,
            embedding=untrained
        text: your own texts, instead of prompts from a corpus; a special token that is spelt in one
            is read as that token
        prompts: sets of prompts to draw: beginnings of stories (story), passages inside stories
            (inside), random tokens (random); default: story, or --text alone
        count: prompts of each set; default: the suite's, else 8
        skip: stories to leave out before the first prompt; default: the suite's, else 0
        length: tokens of each prompt that is drawn; default: the suite's, else 16
        pad_to: fill each prompt with pads up to N tokens
        allowed: gradient solvers answer with tokens of this text alone; what they try on the way is
            not restricted

    Raises:
        RequestError: a number below the least that is allowed.
    """

    layers: tuple[str, ...] = ("all",)
    parts: tuple[str, ...] = ("block",)
    without: tuple[str, ...] = ()
    slices: tuple[str, ...] = ("[:, :, :]",)
    solvers: tuple[str, ...] = ()
    set_: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    noise: tuple[float, ...] = (0.0,)
    controls: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    prompts: tuple[Literal["story", "inside", "random"], ...] = ()
    count: int = 8
    skip: int = 0
    length: int = 16
    pad_to: int | None = None
    allowed: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), LEAST.get(field.name)
            for number in value if isinstance(value, tuple) else (value,):
                if least is not None and number is not None and not least <= number < math.inf:
                    whole = "a number" if field.name == "noise" else "a whole number"
                    flag = field.name.replace("_", "-")
                    raise RequestError(f"--{flag}: {number} is not {whole} of at least {least}")

    @cached_property
    def configured(self) -> "tuple[Solver, ...]":
        """The solvers with their settings.

        Raises:
            RequestError: none, or a solver or setting that does not exist.
        """
        from eval.inversion.solver import parse_solvers

        if not self.solvers:
            raise RequestError("--solvers: give some, as in --solvers sweep adam")
        settings: dict[str, dict[str, Any]] = {name: {} for name in self.solvers}
        for text in self.set_:
            solver, dot, rest = text.partition(".")
            name, equals, value = rest.partition("=")
            if not (dot and equals and solver in settings):
                raise RequestError(
                    f"--set {text}: must be SOLVER.NAME=VALUE with SOLVER one of "
                    f"{', '.join(settings)}"
                )
            settings[solver][name] = _read_value(value)
        return tuple(parse_solvers(settings))

    @cached_property
    def shown(self) -> "tuple[Slice, ...]":
        """The slices that are shown."""
        from eval.sites.slices import Slice

        return tuple(map(Slice.parse, self.slices))

    @property
    def draws(self) -> bool:
        """Whether prompts are drawn from a corpus."""
        return bool(self.prompts) or not self.text

    @property
    def shuffled(self) -> bool:
        """Whether every target is asked about a second time as if it belonged to another prompt."""
        return SHUFFLED in self.controls

    def sites(self, checkpoint: "Checkpoint") -> "list[Site]":
        """The sites of one checkpoint, those that differ in their layers only beside each other.

        Layer 0 has no parts but `block`: where other sites are asked too, a line says so.

        Raises:
            RequestError: a layer that the model has not.
        """
        from eval.sites.circuit import OF_EMBEDDING
        from eval.sites.site import Site, choose_layers

        layers = choose_layers(checkpoint, self.layers)
        without = frozenset(self.without)
        wanted = [*product(self.parts, layers)]
        having = [(part, layer) for part, layer in wanted if 0 not in layer or part in OF_EMBEDDING]
        if len(having) < len(wanted) and having:
            say_once("layer 0, the embedding, has no parts: block.0 alone is asked")
        return [Site(layer, part, without) for part, layer in having or wanted]

    def draw_prompts(
        self, checkpoint: "Checkpoint", corpus: str, least: int | None = None
    ) -> "list[Prompt]":
        """The texts, and the prompts drawn from a corpus.

        Args:
            least: prompts of a set that will do; None: `count`.

        Raises:
            RequestError: too few, or longer than the context.
        """
        from eval.models.text import SETS, drawn_prompts, held_out_text, padded, text_prompts

        tokenizer, context = checkpoint.tokenizer, checkpoint.config.context
        prompts = text_prompts(list(self.text), checkpoint)
        sets = self.prompts or (() if self.text else ("story",))
        for kind in [kind for kind in SETS if kind in sets]:
            checkpoint.check_length(self.length)
            text = held_out_text(checkpoint, corpus)
            prompts += drawn_prompts(kind, text, self.count, self.length, self.skip, least)
        if self.pad_to:
            prompts = padded(prompts, tokenizer, self.pad_to)
        longest = max(len(prompt.tokens) for prompt in prompts)
        if longest > context:
            raise RequestError(
                f"a prompt of {longest} tokens is longer than the context of {checkpoint.path}, "
                f"{context}; shorten --text, --length or --pad-to"
            )
        return prompts

    def allowed_tokens(self, checkpoint: "Checkpoint") -> tuple[int, ...] | None:
        """The tokens that gradient solvers may answer with; None for all."""
        from eval.models.pieces import encode_text

        if self.allowed is None:
            return None
        tokens = set(encode_text(checkpoint.tokenizer, self.allowed, "--allowed"))
        if not tokens:
            raise RequestError(f"--allowed {self.allowed!r}: there is no token in it; give text")
        unknown = getattr(checkpoint.tokenizer.model, "unk_token", None) or ""
        if unknown not in self.allowed and checkpoint.tokenizer.token_to_id(unknown) in tokens:
            raise RequestError(
                f"--allowed {self.allowed!r}: some of it is read as {unknown}; leave that out"
            )
        return tuple(sorted(tokens))

    def refusals(self, lengths: Sequence[int], unfit: bool = True) -> list[str]:
        """What is not asked of prompts of these lengths, and why.

        Args:
            unfit: solvers, too, that do not fit a slice; else slices that show nothing, alone.
        """
        causal, lines = "mask" not in self.without, list[str]()
        for solver, shown, length in product(self.configured, self.shown, lengths):
            refusal = solver.refusal(shown, length, causal)
            if refusal and not shown.shows(length):
                lines.append(refusal)
            elif refusal and unfit:
                lines.append(f"{solver.name} at {shown} ({refusal.partition(', as in')[0]})")
        return list(dict.fromkeys(lines))


def _read_value(text: str) -> Any:
    """A setting's value: a number, true or false, or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
