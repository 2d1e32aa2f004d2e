"""Writes a model in the hub's layout: any built-in mixer, for transformers without this project."""

import json
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from safetensors.torch import save

from arch.costs import count_parameters
from arch.errors import ModelError
from arch.formats.hub.card import write_card
from arch.formats.hub.reader import FIELDS, HELD_OUT, MODEL_TYPE, PROVENANCE
from arch.formats.llama import describe_tokenizer
from arch.mixers import MIXERS, find_foreign
from arch.model import LanguageModel
from arch.storage.directory import as_json
from arch.storage.files import write_directory
from arch.storage.weights import weights_of

CODE = ("configuration_remnant.py", "modeling_remnant.py", "structured_remnant.py")
AUTO_MAP = {
    "AutoConfig": "configuration_remnant.RemnantConfig",
    "AutoModelForCausalLM": "modeling_remnant.RemnantForCausalLM",
}
PUBLIC = ("name", "step", "tokens_seen", "seed", "model_id", "data_sha256", "val_loss",
          "val_bits_per_byte", *HELD_OUT, "begin", "end", "stops")  # fmt: skip
"""Of a model's provenance: what goes with an export. Paths of this machine do not."""


def export_hub(
    directory: str | Path,
    model: LanguageModel,
    tokenizer_json: str,
    meta: dict[str, Any] | None = None,
    *,
    address: str | None = None,
    license: str | None = None,
    recovered: str | None = None,
) -> Path:
    """Writes a model for `AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True)`.

    Weights keep their precision; rows that no token has are left out. An export in this layout
    that is there is replaced; atomic either way.

    Args:
        model: of built-in mixers.
        meta: its provenance, as meta.json holds it.
        address: where the card's users find it, OWNER/NAME; the directory's name when not given.
        license: for the card, by the hub's name.
        recovered: for the card, Markdown as `eval summary --markdown` writes.

    Raises:
        ModelError: a mixer that is not built in, weights that are not those of the configuration,
            or something else is there.
        OSError: the disk is full or the place cannot be written; all is as it was.
    """
    directory, config, meta = Path(directory), model.config, meta or {}
    for name in find_foreign(config.mixers):
        raise ModelError(
            f"--layout hub: mixer {name} is not built in, and its code does not go with the "
            f"export; allowed: {', '.join(sorted(MIXERS))}"
        )
    ids, tokenizer_files = describe_tokenizer(tokenizer_json, config.context, meta)
    fields = json.loads(config.to_json()) | {"d_ff": config.hidden_width}
    provenance = {name: meta[name] for name in PUBLIC if meta.get(name) is not None}
    source = str(meta.get("data_source") or "")
    if source.partition(":")[0] in ("hub", "toy"):
        provenance["data_source"] = source
    about = {
        "architectures": ["RemnantForCausalLM"],
        "model_type": MODEL_TYPE,
        "auto_map": AUTO_MAP,
        **{name: fields[ours] for name, ours in FIELDS.items()},
        "use_cache": False,
        **ids,
        "dtype": str(model.head.weight.dtype).removeprefix("torch."),
        PROVENANCE: provenance,
    }
    weights = weights_of(model)
    for name in {"embedding.weight", "head.weight"} & weights.keys():
        weights[name] = weights[name][: config.vocab_size].contiguous()
    address = address or directory.absolute().name
    card = write_card(config, count_parameters(model), meta, address, license, recovered)
    code = resources("arch.formats.hub")
    write_directory(directory, {
        "model.safetensors": save(weights, {"format": "pt"}),
        **{name: (code / name).read_bytes() for name in CODE},
        **tokenizer_files,
        "generation_config.json": as_json({**ids, "use_cache": False}),
        "README.md": card.encode(),
        "config.json": as_json(about),
    })  # fmt: skip
    return directory
