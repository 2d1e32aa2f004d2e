"""Which model a checkpoint is of: what its training steps and its training seeds share.

A checkpoint has a `model_id`: its name without a seed, and a hash. `train` writes that of a run's
recipe and data into `meta.json`; of any other model the hash is of the weights. Checkpoints of
one `model_id` are steps and seeds of one model, and may be pooled; all others are different models.
"""

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from arch.storage.files import file_sha256, read_json
from arch.storage.runs import BEST, MODELS_IN_RUN, run_of, without_seed
from eval.messages import RequestError, say_once

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from torch.nn import Module

Key = TypeVar("Key", bound=Hashable)
Training: TypeAlias = tuple[str, str, int | None]
"""Its `model_id`, name and training seed, where that is known."""
CHANGED = (
    "other settings (config.json, or the GGUF file), other code, another tokenizer or an earlier "
    "version of remnant"
)
"""How a model with another `settings_hash` is named."""
RUN = 257
"""Neighbouring numbers of a weight that are summed together where weights are compared; a prime, so
that the ends of runs lie in other columns of each row, and columns that change places are seen."""
KNOWN = ("abc", "arch", "builtins", "eval", "torch", "transformers", "typing")
"""Packages whose code stands in no hash."""


def model_id(meta: Mapping[str, Any], weights_sha256: str) -> str:
    """The name without its seed, and a hash: `flat-small-3f2a91c07d`.

    Args:
        meta: the content of a meta.json: the `name`, and of a trained model the `model_id`.
        weights_sha256: of a model that was not trained here.
    """
    known = meta.get("model_id")
    if known and "-" in known:
        return known
    return f"{without_seed(meta['name'])}-{known or weights_sha256[:10]}"  # earlier: the hash alone


def training_seed(meta: Mapping[str, Any]) -> int | None:
    """The seed of a model's training, where its meta.json records it."""
    recipe = meta.get("recipe")
    seed = recipe.get("seed") if isinstance(recipe, dict) else None
    return seed if type(seed) is int else None


def training_length(meta: Mapping[str, Any]) -> int | None:
    """The steps that a model's training was given, where its meta.json records them.

    None where it was given minutes.
    """
    recipe = meta.get("recipe")
    trainer = recipe.get("trainer") if isinstance(recipe, dict) else None
    steps = trainer.get("max_steps") if isinstance(trainer, dict) else None
    return steps if type(steps) is int and not (recipe or {}).get("minutes") else None


def training_code(meta: Mapping[str, Any]) -> dict[str, str]:
    """As `code`, the hash of the files of a user's own mixers, where its training recorded it."""
    recipe = meta.get("recipe")
    machine = recipe.get("machine") if isinstance(recipe, dict) else None
    code = machine.get("code") if isinstance(machine, dict) else None
    return {"code": str(code)} if code else {}


def weights_hash(model: "Module") -> str:
    """The SHA-256 of a model's tensors and their names, in hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def bytes_of(tensor: "Tensor") -> bytes:
    """A tensor's numbers as the bytes that they are in memory."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def sample_weights(model: "Module", read: bool = True) -> list[tuple[int, int]]:
    """What tells that weights, or buffers that files hold, have changed: see `sample_tensors`."""
    return sample_tensors(dict.fromkeys(model.state_dict(keep_vars=True).values()), read)


def sample_tensors(tensors: Iterable["Tensor"], read: bool = True) -> list[tuple[int, int]]:
    """What tells that tensors have changed: the writes to each, and a sum of its bits.

    Fused optimisers and `.data` write without counting. The sum is 0 where no bits are `read`.
    """
    writes = [(x, 0 if x.is_inference() else x._version) for x in tensors]
    return [(count, _sum_bits(x.detach()) if read else 0) for x, count in writes]


def _sum_bits(tensor: "Tensor") -> int:
    """A sum of a tensor's bits as whole numbers, exact in any order of adding.

    Runs of `RUN` numbers are summed, and the sums weighted by their place.
    """
    import torch

    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = flat.view(kinds[flat.element_size()])
    runs = len(bits) // RUN
    sums = bits[: runs * RUN].view(runs, RUN).sum(-1, dtype=bits.dtype)  # others take a cast copy
    sums = torch.cat([sums, bits[runs * RUN :]]).long()
    return int((sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum())


def settings_hash(
    settings: Mapping[str, Any], tokenizer: "Tokenizer", end: int | None, model: "Module"
) -> str:
    """The SHA-256 of what no weight tells of a model: settings, code, and how a text is split.

    Args:
        settings: the content of its config.json, or of the like in memory.
        end: the token that ends a text; where it is not `<|endoftext|>`, it counts, too.
        model: of whose classes the files count.
    """
    from arch.formats.foreign import WITHOUT_EFFECT
    from tokenizer import END_OF_TEXT, encoding_hash

    told = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    ends = [] if end in (None, tokenizer.token_to_id(END_OF_TEXT)) else [end]
    about = [told, encoding_hash(tokenizer), *ends, *sorted(hash_classes(model))]
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_classes(model: "Module") -> set[str]:
    """What `hash_source` says of the classes of a model's parts, and of those they inherit from."""
    kinds = {kind for part in model.modules() for kind in type(part).__mro__}
    return {found for kind in kinds if (found := hash_source(kind))}


@cache
def hash_source(source: Callable[..., Any]) -> str | None:
    """The SHA-256 of the file that a function or a class of a user's own stands in.

    It is of the file when the hash is first asked for: an edit does not change code that is loaded.

    Of a function in a notebook, of its lines. None for those of this project, torch, transformers
    and `KNOWN`, and for what has no source.
    """
    if source.__module__.partition(".")[0] in KNOWN:
        return None
    own = inspect.unwrap(source)
    try:
        file = Path(inspect.getsourcefile(own) or "")
        if file.is_file():
            return file_sha256(file)
        return hashlib.sha256(inspect.getsource(own).encode()).hexdigest()
    except (OSError, TypeError):  # by which inspect says that there is none
        return None


def facts_of(path: Path) -> dict[str, Any]:
    """What lies beside a model's weights when it is opened, and when they were written.

    Of a GGUF file its hash: factors of its rotation stand in no setting.
    """
    if path.is_file():
        return {"settings": {"file_sha256": file_sha256(path)}}
    config, weights = path / "config.json", path / "model.safetensors"
    facts: dict[str, Any] = {"settings": read_json(config)} if config.is_file() else {}
    return facts | ({"written": written(weights)} if weights.is_file() else {})


def written(file: Path) -> tuple[int, int]:
    """Which file lies at a place, and when it was written."""
    about = file.stat()
    return about.st_ino, about.st_mtime_ns


def list_written(path: Path) -> list[tuple[str, int, int]]:
    """Which files lie in a directory, or the file, and when each was written; empty of a name.

    Hidden files say nothing of a model, such as those of a file manager, or half-written ones.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    seen = (file for file in files if file == path or not file.name.startswith("."))
    return [(file.name, *written(file)) for file in seen if file.is_file()]


def seed_labels(rows: Iterable[Mapping[str, Any]]) -> dict[Training, str]:
    """A label for every training seed of the rows, by `training_of`; no two are alike.

    It is the name; with the seed where a model has several seeds of that name, unless the seed is
    not known; where two models have one name, with the hash of the id.

    Raises:
        RequestError: as `labels`.
    """
    known = [row["checkpoint"] for row in rows]
    refuse_two_trainings(known, by_name=True)
    trainings = dict.fromkeys(map(training_of, known))
    seeds = Counter((key, name) for key, name, seed in trainings if seed is not None)
    names = {
        (key, name, seed): name + f" seed {seed}" * (seed is not None and seeds[key, name] > 1)
        for key, name, seed in trainings
    }
    return _tell_apart(names, lambda training: training[0])


def training_of(about: Mapping[str, Any]) -> Training:
    """Which training a checkpoint is of; those of one name lie in directories of their own."""
    return about["model_id"], about["name"], about.get("seed")


def labels(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """A label for every model of the rows, by `model_id`; no two are alike.

    It is the name that its checkpoints share, else theirs without the seed; where two models have
    one label, with the hash of the id.

    Raises:
        RequestError: two trainings of one seed would be two seeds of one model.
    """
    known = [row["checkpoint"] for row in rows]
    refuse_two_trainings(known)
    _say_two_codes(known)
    names: dict[str, set[str]] = {}
    mixers: dict[str, str] = {}
    for about in known:
        names.setdefault(about["model_id"], set()).add(about["name"])
        mixers[about["model_id"]] = ", ".join(map(str, about["mixers"]))
    plain = {
        key: without_seed(min(alike)) or mixers[key] if len(alike) > 1 else min(alike)
        for key, alike in names.items()
    }
    return _tell_apart(plain, lambda key: key)


def refuse_two_trainings(known: Iterable[Mapping[str, Any]], by_name: bool = False) -> None:
    """Refuses two lengths of one model's trainings, and two trainings of one seed.

    With `by_name` runs of two names are kept apart, and may have one seed.

    Runs of two lengths, or of one that went on in two places, have one `model_id`, and are no seeds
    of it. Nor are runs of two names, such as `flat-s0` and `flat-s1`, that were given one --seed. A
    copy has the name and the loss of the first.
    """
    first: dict[Hashable, Mapping[str, Any]] = {}
    for about in known:
        if about["step"] and about.get("max_steps"):
            other = first.setdefault((about["model_id"], about["step"]), about)
            if other["max_steps"] != about["max_steps"]:
                pair = [home_of(Path(c.get("path") or c["name"])) for c in (other, about)]
                raise RequestError(
                    f"{pair[0]} and {pair[1]}: at step {about['step']} they are of trainings of "
                    f"{other['max_steps']} and {about['max_steps']} steps, and would count as "
                    "seeds of one; give those of one length, or train one in a --run of another "
                    "name"
                )
        if None in (about.get("path"), about.get("seed"), about.get("val_loss")):
            continue
        name = about["name"] if by_name else None
        which = about["model_id"], name, about["seed"], about["step"]
        other = first.setdefault(which, about)
        places = [home_of(Path(checkpoint["path"])) for checkpoint in (other, about)]
        differs = any(other[key] != about[key] for key in ("name", "val_loss"))
        if differs and places[0].resolve() != places[1].resolve():
            raise RequestError(
                f"{places[0]} and {places[1]}: both were trained with --seed {about['seed']} to "
                f"step {about['step']}, and would count as two seeds; give one of the two, or "
                "train one of them with another --seed, or in a --run of another name"
            )


def _say_two_codes(known: Iterable[Mapping[str, Any]]) -> None:
    """Says on stderr which seeds of one model were trained by two versions of a user's own mixer.

    The code is no part of a `model_id`, as an edit may change nothing that is learnt.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for about in known:
        if about.get("code"):
            other = first.setdefault(about["model_id"], about)
            if other["code"] != about["code"]:
                pair = [home_of(Path(c.get("path") or c["name"])) for c in (other, about)]
                say_once(
                    f"{pair[0]} and {pair[1]}: two versions of the code of a mixer trained them; "
                    "they count as one model"
                )


def home_of(model: Path) -> Path:
    """The run of a model directory, or the directory itself where it lies in no run."""
    return run_of(model) if model.name == BEST or model.parent.name == MODELS_IN_RUN else model


def _tell_apart(names: dict[Key, str], id_of: Callable[[Key], str]) -> dict[Key, str]:
    """The names, each with the hash of its `model_id` where another model has the same name."""
    count = Counter(name for _, name in {(id_of(key), name) for key, name in names.items()})
    return {
        key: name if count[name] == 1 else f"{name} ({id_of(key).rpartition('-')[2]})"
        for key, name in names.items()
    }
