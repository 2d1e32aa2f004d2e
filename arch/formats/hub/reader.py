"""Opens a model in the hub's layout as the model that it is; the code beside it never runs."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from arch.config import ModelConfig
from arch.errors import ModelError, printable, show_value
from arch.formats.foreign import WITHOUT_EFFECT, common_prefix, is_off, read_layout, read_settings
from arch.formats.named_tokens import read_ends
from arch.mixers import MIXERS, find_foreign
from arch.storage.directory import (
    META,
    MULTIPLES,
    LoadedModel,
    check_meta,
    check_vocabulary,
    drop_rowless,
)
from arch.storage.files import read_json, read_text
from arch.storage.weights import build_model, drop_padding, is_tied, read_all_weights

MODEL_TYPE = "remnant"
PROVENANCE = "remnant"
"""The setting that holds what is known of a model's training."""
HELD_OUT = ("field", "valid_fraction", "source_files")
"""Of the provenance: what tells which stories of a text were not trained on."""
FIELDS = {  # in a config.json of transformers, and ours
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "d_ff",
    "tie_word_embeddings": "tied",
    **{name: name for name in ("mixers", "channel_mixer", "norm", "norm_eps", "final_norm",
                               "init", "embedding_std")},
}  # fmt: skip


def is_hub_export(directory: str | Path) -> bool:
    """Whether a directory has a configuration of a model of remnant, in transformers' layout.

    Raises:
        ModelError: a config.json that is no JSON.
    """
    file = Path(directory, "config.json")
    if not file.is_file() or Path(directory, "meta.json").is_file():
        return False
    return read_json(file).get("model_type") == MODEL_TYPE


def import_hub(directory: str | Path) -> LoadedModel:
    """Reads what `export_hub` wrote, in the precision of its weights, in evaluation mode.

    If transformers has saved the export again, it is another model. Of its recorded training only
    `HELD_OUT` stays, and the ends of a text if its own files name none. Rows that its embedding was
    padded with are left out.

    Raises:
        ModelError: a file that is missing, a setting that is missing or not known, a mixer that is
            not built in, weights that do not fit, or a tokenizer of another size.
    """
    directory = Path(directory)
    path, file = directory / "config.json", directory / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{directory} has no tokenizer.json; save the tokenizer there")
    given = read_settings(path)
    config = _read_config(given, path)
    meta: dict[str, Any] = {"name": directory.absolute().name}
    if "transformers_version" in given:  # which no export has
        meta["source"] = "transformers"
        meta |= read_provenance(given, path, (*HELD_OUT, "begin", "end", "stops"))
    else:
        meta |= read_provenance(given, path, META)
    tokenizer_json = drop_rowless(file, read_text(file), config.vocab_size)
    size = check_vocabulary(file, tokenizer_json, config.vocab_size, MULTIPLES)
    if "transformers_version" in given:
        meta |= read_ends(directory, tokenizer_json)
    files, _ = read_layout(given, directory)
    held = read_all_weights(files)
    prefix = common_prefix(held, directory)
    weights = {name.removeprefix(prefix): tensor for name, tensor in held.items()}
    if config.tied and not is_tied(weights):
        raise ModelError(
            f"{path}: tie_word_embeddings is true, but the weights have a head of their own; set "
            "it to false"
        )
    model = drop_padding(build_model(config, weights, str(directory)), size)
    return LoadedModel(model, model.config, tokenizer_json, meta, directory)


def read_provenance(
    given: dict[str, Any], path: Path, names: Collection[str] = HELD_OUT
) -> dict[str, Any]:
    """What a configuration records of a model's training under these names, in either layout.

    Raises:
        ModelError: it is of another type than its readers take.
    """
    provenance = given.get(PROVENANCE) or {}
    if not isinstance(provenance, dict):
        raise ModelError(f"{path}: {PROVENANCE} is {show_value(provenance)}; expected an object")
    known = {name: value for name, value in provenance.items() if name in names}
    check_meta({"name": "", **known}, path)
    return known


def _read_config(given: dict[str, Any], path: Path) -> ModelConfig:
    """The configuration in our words."""
    if missing := [name for name in FIELDS if name not in given]:
        raise ModelError(f"{path} lacks {', '.join(missing)}; export the model anew")
    for name, value in given.items():
        known = name in FIELDS or name in WITHOUT_EFFECT or name in ("model_type", PROVENANCE)
        if not known and not is_off(value):
            raise ModelError(
                f"{path}: {printable(name, 80)} is {show_value(value)}, which no model of remnant "
                "has; take it out if it changes nothing"
            )
    try:
        config = ModelConfig(**{ours: given[name] for name, ours in FIELDS.items()})
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    for name in find_foreign(config.mixers, f"{path}: mixer"):
        raise ModelError(
            f"{path}: mixer {printable(name, 120)} is not built in; allowed: "
            f"{', '.join(sorted(MIXERS))}"
        )
    return config
