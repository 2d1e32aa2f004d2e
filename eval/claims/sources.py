"""Where a claim's models come from: built from a seed, trained before, or a pretrained model's.

Untrained models are built anew each time, not saved: the configuration and the seed say everything.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from arch import LanguageModel, ModelConfig, load_pretrained
from arch.directory import drop_padding
from arch.files import read_json, write_text
from arch.mixers import parse_mixer
from eval import RequestError
from eval.claims.entries import Claim, Models
from eval.gather import Saved, saved_models
from eval.models import PRETRAINED, Checkpoint, draw, open_checkpoint
from eval.tables import group
from eval.text import toy_tokenizer
from tokenizer import load_tokenizer

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "8 bit": torch.float16}
BESIDE = ["*.json", "tokenizer.model", "merges.txt"]  # files that a model needs beside weights


class Missing(RequestError):
    """A claim's models are not here; the message says how to have them."""


class ModelSource(NamedTuple):
    """A model that can be opened: it is read or built then."""

    name: str  # known before it is opened
    kind: str  # equal for the models that one arm is asked of
    open: Callable[[], Checkpoint]


@dataclass
class Shelf:
    """The places that models are taken from, and how they are opened."""

    out: Path  # results directory, where a tokenizer trained on the toy corpus is kept
    models: Path | None = None  # holds trained model directories, at any depth
    model: str | None = None  # directory of a pretrained model's weights, given by hand
    download: bool = False  # whether pretrained models may be downloaded
    stand_in: str | None = None  # directory of a model that is asked in place of claims' own
    precision: str | None = None  # of pretrained models, in place of the claim's
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    full: bool = False  # whether untrained models have their claims' full sizes on a CPU too
    _opened: dict[tuple[str, str], Checkpoint] = field(default_factory=dict, repr=False)

    def sources(
        self, claim: Claim, models: Models, seeds: int, first: int = 0
    ) -> list[ModelSource]:
        """A claim's models, `seeds` of our own at most, those that are built from seed `first` on.

        Raises:
            Missing: there are none.
            RequestError: weights of another family or size.
        """
        kind, makers = "", {}
        if models.stand_in:
            assert self.stand_in
            makers[models.stand_in] = partial(open_checkpoint, self.stand_in, self.device)
        elif (models.family, models.weights, self.model) == ("gpt2", "random", None):
            _need_transformers(claim)
            name = f"{models.family} [random] d{models.size[0]} n{models.size[1]}"
            makers[name] = partial(self._untrained, name, models)
        elif not models.own:
            directory = self._pretrained(claim, models)
            precision = self.precision or models.precision
            name = f"{Path(directory).resolve()} {models.weights} {precision}"
            makers[name] = partial(self._wrap, models, directory, precision)
        elif models.trained:
            for path in self._trained(claim, models)[:seeds]:
                makers[str(path)] = partial(open_checkpoint, path, self.device)
        else:
            config = self._config(models.config | ({} if self.full else models.cpu))
            kind, size = config.to_json(), f"d{config.d_model}-n{config.n_layers}"
            for seed in range(first, first + seeds):
                name = f"{'+'.join(_bare(config.mixers))}-{size}-s{seed}"
                makers[name] = partial(drawn, name, config, seed, self.tokenizer, self.device)
        kind = kind or " ".join(makers)
        return [ModelSource(name, kind, partial(self._open, (name, kind), make))
                for name, make in makers.items()]  # fmt: skip

    def _open(self, key: tuple[str, str], make: Callable[[], Checkpoint]) -> Checkpoint:
        """A model, which is kept until another is opened."""
        if key not in self._opened:
            self._opened.clear()
            self._opened[key] = make()
        return self._opened[key]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of untrained models: the trained ones', else one of the toy corpus.

        It is kept beside the results.

        Raises:
            RequestError: the results have another one already.
        """
        path = self.out / "tokenizer.json"
        if self._last:
            given = (self._last[0].folder / "tokenizer.json").read_text(encoding="utf-8")
            if not path.is_file():
                write_text(path, given)
            elif json.loads(path.read_text(encoding="utf-8")) != json.loads(given):
                raise RequestError(
                    f"--out {self.out}: its untrained models were asked with another tokenizer "
                    f"than that of --models {self.models}; give another --out"
                )
        elif not path.is_file():
            write_text(path, toy_tokenizer().to_str())
        return load_tokenizer(path)

    @cached_property
    def _last(self) -> list[Saved]:
        """Trained models: of each run the last step."""
        ordered = sorted(trained(self.models), key=lambda one: (one.folder.parent, one.step))
        return list({one.folder.parent: one for one in ordered if one.step}.values())

    def _trained(self, claim: Claim, models: Models) -> list[Path]:
        """The seeds of the size asked for; else of a CPU's; else of the largest of that kind."""
        wanted = [self._config(models.config), self._config(models.config | models.cpu)]
        kinds = [kind_of(config) for config in wanted]
        known = [one for one in self._last if one.config and kind_of(one.config) in kinds]
        alike = group(known, lambda one: one.config and shape_of(one.config))
        largest = sorted(alike, key=lambda size: size[0] ** 2 * size[1], reverse=True)
        for shape in (*map(shape_of, wanted), *largest):
            if shape in alike:
                return [one.folder for one in seeds_of_one(alike[shape])]
        c = models.config
        recipe = "llama" if c["mixers"][0].startswith("attention") else "flat"
        fix = train_command(recipe, "NAME", c["mixers"], c["d_model"], c["n_layers"])
        raise Missing(f"claim {claim.number} needs a trained model; {fix}")

    def _config(self, fields: dict[str, Any]) -> ModelConfig:
        known: dict[str, Any] = {"vocab_size": self.tokenizer.get_vocab_size()}
        return ModelConfig(**(known | fields))

    def _pretrained(self, claim: Claim, models: Models) -> str:
        """The directory of its weights."""
        if self.model:
            directory = self.model.removeprefix(PRETRAINED)
            self._check(claim, models, directory)
            return directory
        _need_transformers(claim)
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            return snapshot_download(
                models.hub,
                allow_patterns=[*BESIDE, models.files],
                local_files_only=not self.download,
            )
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
            tried = f" ({str(error).splitlines()[0]})" if self.download else ""
            raise Missing(
                f"claim {claim.number} needs {models.needs}; fix: {claim.command} --download, "
                f"or --model DIR with the weights{tried}"
            ) from None

    def _check(self, claim: Claim, models: Models, directory: str) -> None:
        """Refuses weights that a claim is not about."""
        path, about = Path(directory) / "config.json", f"claim {claim.number} is about"
        config = read_json(path) if path.is_file() else {}
        width, depth = (
            next((int(config[name]) for name in names if name in config), 0)
            for names in (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"))
        )
        if not path.is_file():
            wrong = "no config.json there; give a directory in transformers' layout with"
        elif (family := config.get("model_type")) != models.family:
            wrong = f"its family is {family}, {about} {models.family}; give"
        elif (width, depth) != models.size:
            asked = f"{models.size[1]} of {models.size[0]}"
            wrong = f"{depth} blocks of width {width}, {about} {asked}; give"
        else:
            return
        raise RequestError(f"--model {directory}: {wrong} the weights of {models.hub}")

    def _wrap(self, models: Models, directory: str, precision: str) -> Checkpoint:
        loaded = load_pretrained(
            directory, self.device, PRECISIONS[precision], eight_bit=precision == "8 bit"
        )
        model, meta = loaded.model, dict(loaded.meta)
        if models.weights != "pretrained":
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(directory)
            fresh = _fresh(config, self.device, PRECISIONS[precision])
            drop_padding(fresh, model.config.vocab_size)  # as its weights are without
            meta["name"] = f"{meta['name']} [{models.weights}]"
            if models.weights == "random":
                model = fresh
            else:
                model.embedding.weight = fresh.embedding.weight
        model.requires_grad_(False)
        tokenizer = Tokenizer.from_str(loaded.tokenizer_json)
        return Checkpoint(model, model.config, tokenizer, meta, loaded.path)

    def _untrained(self, name: str, models: Models) -> Checkpoint:
        """A GPT-2 as it is initialised, its tokens numbered by the tokenizer of our own models.

        Its sizes say all: a head is 64 wide in every GPT-2 (Radford et al., 2019). What a token
        is called is nothing to weights that have seen none.
        """
        from transformers import GPT2Config

        width, depth = models.size
        config = GPT2Config(n_embd=width, n_layer=depth, n_head=max(1, width // 64))
        model = _fresh(config, self.device, PRECISIONS[self.precision or models.precision])
        return Checkpoint(model, model.config, self.tokenizer, {"name": name}, Path(name))


def trained(models: Path | None) -> list[Saved]:
    """All model directories under a directory, none without one.

    Raises:
        RequestError: no such directory.
        ModelError: a configuration that is not one.
    """
    if models and not models.is_dir():
        raise RequestError(f"--models {models}: no such directory; give one of runs")
    return saved_models(models) if models else []


def seeds_of_one(models: Iterable[Saved]) -> list[Saved]:
    """The directories of the model that has most of them; of several such models, the first."""
    return max(group(models, lambda one: one.model_id).values(), key=len, default=[])


def kind_of(config: ModelConfig) -> tuple[Any, ...]:
    """The architecture: equal for all sizes, recipes, seeds, data and vocabularies."""

    def whole(mixer: type, given: dict[str, Any]) -> tuple[Any, ...]:
        parameters = inspect.signature(mixer).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        return mixer.__name__, *sorted((defaults | given).items())

    mixers = [[whole(*term) for term in parse_mixer(entry)] for entry in config.mixers]
    return str(mixers), config.channel_mixer, config.norm


def shape_of(config: ModelConfig) -> tuple[int, int]:
    """Width and depth."""
    return config.d_model, config.n_layers


def drawn(
    name: str, config: ModelConfig, seed: int, tokenizer: Tokenizer, device: torch.device
) -> Checkpoint:
    """An untrained model, drawn from its seed."""
    model = draw(lambda: LanguageModel(config), seed).to(device)
    return Checkpoint(model, config, tokenizer, {"name": name, "step": 0}, Path(name))


def size_of(provenance: dict[str, Any]) -> str:
    """A model's mixers, width, depth and state: `flat d512 n8 untrained`."""
    mixers = ", ".join(_bare(provenance["mixers"]))
    state = "trained" if provenance["trained"] else "untrained"
    return f"{mixers} d{provenance['d_model']} n{provenance['n_layers']} {state}"


def train_command(
    recipe: str, run: str, mixers: Iterable[str], width: int, depth: int, more: str = ""
) -> str:
    """The command that trains a model, as the end of an error."""
    return (
        f"fix: python -m train fit --config {recipe} --data DATA --run RUNS/{run} --model.mixers "
        f"'{json.dumps(list(mixers))}' --model.d_model {width} --model.n_layers {depth}{more}, "
        "then --models RUNS"
    )


@torch.no_grad()
def _fresh(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The model built anew from its configuration, with seed 0."""
    from transformers import AutoModelForCausalLM

    from arch.pretrained import PretrainedModel

    model = draw(lambda: AutoModelForCausalLM.from_config(config), seed=0)
    return PretrainedModel(model.to(device, dtype))


def _need_transformers(claim: Claim) -> None:
    if importlib.util.find_spec("transformers") is None:
        raise Missing(f"claim {claim.number} needs transformers; fix: pip install '.[pretrained]'")


def _bare(mixers: Iterable[str]) -> list[str]:
    """Mixers without their arguments."""
    return [re.sub(r"\(.*?\)", "", mixer) for mixer in mixers]
