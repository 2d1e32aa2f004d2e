"""Which model a checkpoint is of: what its training steps and its training seeds share.

A checkpoint has a `model_id`: its name without a seed, and a hash of its recipe. Checkpoints of one
`model_id` are steps and seeds of one model, and may be pooled; all others are different models. The
recipe is:

- of a model trained here: its configuration, the settings of its run without those of `NOT_RECIPE`,
  and the hash of its data. The settings in `meta.json` are those that the run began with, also
  where it went on with others (`history`), and the number of steps is not in the recipe: a run is
  one model.
- of a pretrained model: its weights, as nothing else tells a model from its fine-tuned copy. Where
  its name ends in a seed, its sizes, so that seeds which were published together are pooled.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from arch import ModelConfig
from eval import RequestError

if TYPE_CHECKING:
    from eval.schema import Row

SEED = re.compile(r"(?:^|[-_. ])s(?:eed)?[-_.= ]?\d+(?= \[|$)")
"""The training seed at the end of a model's name: `flat-s0`, `mixers=flat_seed=1`."""
SIZES = ("mixers", "d_model", "n_layers", "context", "parameters", "init", "embedding_std")
"""Fields of a row's checkpoint that say how its model is built."""
NOT_RECIPE = {
    "run", "data", "seed", "resume", "precision", "compile", "checkpoint_activations", "save_steps",
    "save_every", "checkpoint_every", "keep_checkpoints", "validate_every", "validate_tokens",
    "layout", "log_every", "sample_prompts", "wandb", "wandb_project",
    "wandb_group", "wandb_tags", "trainer.accelerator", "trainer.devices", "trainer.strategy",
    "trainer.num_nodes", "trainer.max_steps", "batch.micro", "model.vocab_multiple",
    "tf32", "save_best", "early_stopping", "loggers",
    "machine.threads", "machine.instructions", "machine.torch",
}  # fmt: skip
"""Settings that seeds of one recipe need not share: paths, how often a run is saved and reported,
and how a device computes a step."""

Facts = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


def recipe(
    meta: Mapping[str, Any], config: ModelConfig | None, weights: Callable[[], str]
) -> Facts:
    """What all seeds of a model share, by the names of the settings.

    Args:
        meta: the content of its meta.json.
        config: of the model; None where it is not known.
        weights: gives the hash of its weights; called only where that is the recipe.
    """
    if "source" in meta and not SEED.search(str(meta.get("name", ""))):
        return {"weights": weights()}
    settings = meta.get("recipe", {})
    training = {
        name: value
        for name, value in _flat(settings).items()
        if name not in NOT_RECIPE and not name.startswith("model.")
    }
    data = meta["data_sha256"] if "data_sha256" in meta else settings.get("data")
    return (_built(config) if config else {}) | training | {"data": data}


def model_id(name: str, facts: Mapping[str, Any]) -> str:
    """The name without its seed, and a hash of the facts: `flat-small-3f2a91c07d`.

    Fields of the configuration at their defaults are not hashed, so that a field that is added
    later changes no hash.
    """
    defaults = _built(ModelConfig())
    kept = {n: v for n, v in facts.items() if n not in defaults or v != defaults[n]}
    digest = hashlib.sha256(_text(kept).encode()).hexdigest()[:10]
    return f"{SEED.sub('', name)}-{digest}"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def run_settings(run: Path) -> Facts:
    """The settings of a run directory; empty where it has no config.yaml.

    Raises:
        RequestError: that is not YAML.
    """
    file = run / "config.yaml"
    try:
        settings = (yaml.safe_load(file.read_text("utf-8")) if file.is_file() else None) or {}
        if isinstance(settings, dict):
            return settings
    except (yaml.YAMLError, UnicodeDecodeError):
        pass
    raise RequestError(f"{file}: not YAML of settings; is it the config of a run?")


def recoveries(rows: "Iterable[Row]") -> "list[Row]":
    """The recoveries, of equal keys the last."""
    by_key = {row["key"]: row for row in rows}
    return [row for row in by_key.values() if row["kind"] == "recovery"]


def model_of(row: "Row") -> str:
    """Equal for the training steps and seeds of one model."""
    return row["checkpoint"]["model_id"]


def labels(rows: "Iterable[Row]") -> dict[str, str]:
    """A label for every model of the rows, told apart from the others, by `model_id`."""
    models: dict[str, Described] = {}
    for row in rows:
        about = row["checkpoint"]
        digest = about["model_id"].rpartition("-")[2]
        described = Described(set(), _plain(about["mixers"]), sizes(about), digest)
        models.setdefault(about["model_id"], described).names.add(about["name"])
    return distinct(models)


class Described(NamedTuple):
    """What a label is made of.

    Attributes:
        names: of the model's checkpoints.
        mixers: the label of a model whose name is a seed and nothing else.
        facts: of its recipe, or its sizes.
        otherwise: tells it from others of the same label and facts.
    """

    names: set[str]
    mixers: str
    facts: Mapping[str, Any]
    otherwise: str


def distinct(models: Mapping[Key, Described]) -> dict[Key, str]:
    """A label for each model, no two alike.

    The name that its checkpoints share, or theirs without the seed. Models of one label get the
    facts in which they differ beside it; where these do not tell all apart, `otherwise`.
    """
    result = {key: _label(one) for key, one in models.items()}
    for label in {label for label in result.values() if list(result.values()).count(label) > 1}:
        alike = [key for key in models if result[key] == label]
        ends = [_differences(models[key], [models[other] for other in alike]) for key in alike]
        if "" in ends or len(set(ends)) < len(ends):
            ends = [models[key].otherwise for key in alike]
        result |= {key: f"{label} ({end})" for key, end in zip(alike, ends, strict=True)}
    return result


def sizes(about: Mapping[str, Any]) -> Facts:
    """How a row's model is built."""
    return {field: about.get(field) for field in SIZES}


def _built(config: ModelConfig) -> Facts:
    fields = {f"model.{name}": value for name, value in dataclasses.asdict(config).items()}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if name not in NOT_RECIPE  # a model that is loaded lacks the rows of vocab_multiple
    }


def _flat(settings: Mapping[str, Any]) -> Facts:
    """Settings by the names of their flags: `optimizer.lr`."""
    flat: Facts = {}
    for name, value in settings.items():
        nested = value if isinstance(value, dict) else None
        flat |= {f"{name}.{n}": v for n, v in nested.items()} if nested else {name: value}
    return flat


def _label(model: Described) -> str:
    name = next(iter(model.names))
    return name if len(model.names) == 1 else SEED.sub("", name) or model.mixers


def _differences(model: Described, alike: Sequence[Described]) -> str:
    """The facts in which models of one label differ, as far as they are known of all."""
    shared = set.intersection(*(set(other.facts) for other in alike))
    return ", ".join(
        f"{name.rpartition('.')[2]} {_plain(value)}"
        for name, value in model.facts.items()
        if name in shared and len({_text(other.facts[name]) for other in alike}) > 1
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
