"""Models to ask: opened from a directory, the hub, a file or memory, with their provenance.

    open_model("runs/flat/models/step-020000"), open_model("hf:gpt2"), open_model("hf:model.gguf")
    open_model(module, tokenizer=tokenizer)  # of transformers, or of ours

A result that depends on the model alone is kept with it, once for all its sites.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4
from weakref import ref

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from arch import LanguageModel, ModelConfig, ModelError, check_causal, count_parameters, load_model
from arch.kernels.arithmetic import plain_arithmetic
from arch.pretrained.pretrained import load_pretrained, refusals, wrap_model
from arch.pretrained.tokenizers import fit_tokenizer, largest_id, read_tokenizer
from arch.storage.files import file_sha256, read_json
from arch.storage.runs import PRETRAINED, SHIPPED, find_model, walk_folders
from arch.storage.weights import check_finite, drop_padding
from eval.messages import ArgumentError, RequestError, is_nested
from eval.models import TRUST_CODE, identity
from eval.models.pieces import Pieces, say_how_text_is_read
from eval.models.running.modules import copy_module, hash_module, read_facts, sample_parts, unwrap
from eval.models.running.outputs import Outputs, run_model
from eval.models.running.patches import Patch, patched_sites
from tokenizer import END_OF_TEXT

Kept = TypeVar("Kept")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded model: in evaluation mode, with its tokenizer and its provenance.

    Attributes:
        control: how it was changed, of a model to compare with; None for the model itself.
        weights: a hash that stands for the weights, where no file does.
        given: the module that it is a copy of, while there is one.
        sample: what its weights were as they were opened.
        parts: what its modules were, and those of the module that was given.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    meta: dict[str, Any]
    path: Path
    control: str | None = None
    weights: str | None = None
    given: Callable[[], nn.Module | None] = field(default=type(None), repr=False)
    sample: list[tuple[int, int]] = field(init=False, repr=False)
    parts: list[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        identity.hash_classes(self.model)  # of the code as it was loaded
        vars(self)["sample"] = identity.sample_weights(self.model)
        vars(self)["parts"] = sample_parts(self.model, self.given())

    def __reduce__(self) -> tuple[Any, ...]:
        """Has it opened again where it is unpickled, without the module that it was a copy of."""
        taken = [field.name for field in fields(self) if field.init and field.name != "given"]
        return Checkpoint, tuple(getattr(self, name) for name in taken)

    def check_unchanged(self, read: bool = True) -> None:
        """Refuses a model that is no longer what was opened, by a `RequestError`.

        Where its weights are not `read`, only writes to them that torch counts are seen.
        """
        opened = self.sample if read else [(writes, 0) for writes, _ in self.sample]
        now = sample_parts(self.model, self.given())
        what = "hooks, modules or settings changed; take off hooks that only look,"
        if opened != identity.sample_weights(self.model, read):
            what = "weights changed;"
        elif self.parts[: len(now)] == now:
            return
        raise RequestError(f"{self.path}: its {what} open it again, or use patched")

    @plain_arithmetic()
    def __call__(self, text: str | Tensor) -> Outputs:
        """Runs the model once over a text: its logits, and the stream after each block.

        Args:
            text: or token ids, `(B, T)`.

        Raises:
            RequestError: no token, or more of them than the context.
        """
        return run_model(self.model, self.tokenizer, text)

    @contextmanager
    def patched(self, patches: Mapping[str, Patch]) -> Iterator[None]:
        """Changes outputs of sites while the block runs, in `model(text)` and in every question.

            with model.patched({"block.2": lambda x: x * 0.5}):
                model("The dog ran.").logits

        Rows that are measured in the block are of another model, whose name says what is patched.

        Args:
            patches: by site (`mixer.1`, `stream.1`, `block.1`; `block.0` is the embedding,
                `final.L` the norm's output), what becomes of its outputs `(B, T, D)`.

        Raises:
            RequestError: a site that the model has not, a patch that is no function, or a model
                that changed since it was opened; within the block, a patch that gives another
                shape, or a question that goes on from a prefix, such as generation.
        """
        self.check_unchanged(read=False)
        before = dict(vars(self))
        name = f"{self.meta['name']}, patched {' '.join(patches)}"
        changed = {"meta": {**self.meta, "name": name, "model_id": None}, "weights": uuid4().hex}
        with patched_sites(self.model, patches):
            self.release()
            changed["parts"] = sample_parts(self.model, self.given())
            vars(self).clear()
            vars(self).update({field.name: before[field.name] for field in fields(self)} | changed)
            try:
                yield
            finally:
                self.release()
                vars(self).clear()
                vars(self).update(before)

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """The results of `keep`; they go with the checkpoint, or when another is at work."""
        return {}

    def release(self) -> None:
        """Drops what was computed of the model."""
        self.kept.clear()
        self.model.kept.clear()

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The result under a key, computed when it is first asked for."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    @cached_property
    def weights_sha256(self) -> str:
        """The hash of the weights' file, or of the tensors of a pretrained model."""
        if self.weights:
            return self.weights
        file = self.path / "model.safetensors"
        if (self.path / "meta.json").is_file() and file.is_file():
            if self.meta.get("written", written := identity.written(file)) != written:
                raise RequestError(f"{file}: was written anew since it was opened; open it again")
            return file_sha256(file)
        return identity.weights_hash(self.model)

    @cached_property
    def settings_sha256(self) -> str:
        """The hash of what no weight tells of it; see `eval.models.identity`."""
        settings = self.meta.get("settings", {})
        return identity.settings_hash(settings, self.tokenizer, self.end, self.model)

    @cached_property
    def stops(self) -> list[int]:
        """The tokens that end a text: `<|endoftext|>`, and each EOS that the model's files name."""
        named = (END_OF_TEXT, self.meta.get("end"), *(self.meta.get("stops") or ()))
        ids = (self.tokenizer.token_to_id(token) for token in named if isinstance(token, str))
        return [token for token in ids if token is not None]

    @property
    def end(self) -> int | None:
        """The token that stands between texts: the first of `stops`."""
        return next(iter(self.stops), None)

    @cached_property
    def model_id(self) -> str:
        """Equal for the training steps and seeds of one model; see `eval.models.identity`."""
        return identity.model_id(self.meta, self.weights_sha256)

    @cached_property
    def identity(self) -> tuple[str, int, str]:
        """The name, training step and weights, which stand for the model in the keys of rows."""
        return self.meta["name"], int(self.meta.get("step", 0)), self.weights_sha256

    def check_layer(self, layer: int) -> None:
        """Refuses a layer that the model has not, by an `ArgumentError` of `--layers`."""
        if not 0 <= layer <= self.config.n_layers:
            known = f"{self.path} has layers 0 (the embedding) to {self.config.n_layers}"
            raise ArgumentError("--layers", known, layer)

    def check_length(self, length: int) -> None:
        """Refuses more tokens than the context holds, by a `RequestError` that names `--length`."""
        if length > self.config.context:
            raise RequestError(
                f"--length {length}: the context of {self.path} is {self.config.context}; give a "
                "shorter one"
            )

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The `checkpoint` field of a row."""
        step = int(self.meta.get("step", 0))
        return {
            "name": self.meta["name"],
            "model_id": self.model_id,
            "path": str(self.path),
            "step": step,
            **({"tokens_seen": self.meta["tokens_seen"]} if "tokens_seen" in self.meta else {}),
            "trained": step > 0 or "source" in self.meta,
            "mixers": list(self.config.mixers),
            **{n: getattr(self.config, n) for n in ("d_model", "n_layers", "context")},
            "parameters": count_parameters(getattr(self.model, "whole", self.model)),
            "seed": identity.training_seed(self.meta),
            "max_steps": identity.training_length(self.meta),
            **identity.training_code(self.meta),
            "val_loss": self.meta.get("val_loss"),
            **{n: getattr(self.config, n) for n in ("init", "embedding_std")},
            "weights_sha256": self.weights_sha256,
            "settings_sha256": self.settings_sha256,
        }

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The piece of a text that each of its tokens is; see `Pieces.of`."""
        return self._pieces.of(tokens)

    def words(self, tokens: Iterable[int]) -> list[str]:
        """How each of these tokens, which are no text together, reads; see `Pieces.alone`."""
        return [self._pieces.alone(token) for token in tokens]

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(self.tokenizer)


@plain_arithmetic()
def open_checkpoint(
    path: str | Path, device: str | torch.device = "cpu", trust_code: bool | None = None
) -> Checkpoint:
    """Loads a model directory, a run's last model, or `hf:` and a transformers model.

    `trust_code` is as for `open_model`; None: what the command at work was given.

    Raises:
        ModelError: the directory is missing or its files do not belong together; a pretrained
            model that cannot be had; an output that depends on a later token.
        RequestError: no path and no name.
    """
    if not isinstance(path, str | Path):
        raise RequestError(
            f"model: a {type(path).__name__}; give a path or a name, or what open_model(path) gives"
        )
    name = str(path)
    loaded = (
        load_pretrained(name.removeprefix(PRETRAINED), device)
        if name.startswith(PRETRAINED)
        else load_model(
            model_directory(path),
            device,
            trust_code=TRUST_CODE.get() if trust_code is None else trust_code,
        )
    )
    loaded.model.requires_grad_(False)
    check_causal(loaded.model)
    tokenizer = read_tokenizer(loaded.tokenizer_json, loaded.path / "tokenizer.json")
    say_how_text_is_read(tokenizer, loaded.meta["name"])
    meta = loaded.meta | identity.facts_of(loaded.path)
    return Checkpoint(loaded.model, loaded.config, tokenizer, meta, loaded.path)


def model_directory(path: str | Path) -> Path:
    """The model directory of a path: itself, a run's last model, RUN@STEP or RUN@best.

    Raises:
        ModelError: no such model, or a file or a directory of another layout.
    """
    path = find_model(path)
    if (path / "meta.json").is_file():
        return path
    if path.suffix == ".ckpt":
        run = path.parent.parent
        raise ModelError(f"{path}: is a checkpoint to resume training from; give its run, {run}")
    if path.is_file() and path.suffix.lower() == ".gguf":
        raise ModelError(f"{path}: is a GGUF file; give {PRETRAINED}{path}")
    config = path / "config.json"
    if config.is_file() and "model_type" in read_json(config):
        raise ModelError(f"{path}: has the layout of transformers; give {PRETRAINED}{path}")
    return path


def find_models(folder: str | Path) -> list[Path]:
    """The model directories at or below a directory, but for hidden ones; or that of RUN@STEP."""
    named = "@" in str(folder) or str(folder).startswith(SHIPPED)
    if named and not Path(folder).exists():
        return [model_directory(folder)]
    held, top = {"model.safetensors", "meta.json"}, Path(folder)
    found = [path for path, _, files in walk_folders(top) if held.issubset(files)]
    return sorted(p for p in found if not any(n[0] == "." for n in p.relative_to(top).parts))


@plain_arithmetic()
def open_model(
    model: str | Path | nn.Module,
    device: str = "auto",
    *,
    tokenizer: Any = None,
    name: str | None = None,
    trust_code: bool | None = None,
) -> Checkpoint:
    """Opens a model for evaluation.

    Args:
        model: a model directory; a run, for its last model, RUN@STEP, or RUN@best, that of the
            lowest validation loss; `remnant:` and a name in models/; `hf:` and a name of the
            hub, a directory in transformers' layout or a GGUF file; or a module in memory, a causal
            model of transformers or of ours. The module stays as it is and where it is: the
            checkpoint is a copy in evaluation mode that shares its weights (an rwkv, which changes
            its own as it runs, has copies). Open it anew when it has changed.
        device: cpu, cuda, or auto: a GPU that is in reach. Not of a module in memory.
        tokenizer: of a module in memory: of the library tokenizers, or a fast one of transformers.
        name: of a module in memory, in rows and pages; its class when not given.
        trust_code: whether a model directory may name mixers outside this project, as
            `module.Class`, whose code then runs; not when not given.

    Raises:
        ModelError: a model directory that cannot be read, a pretrained model that cannot be had,
            weights that are not finite, a module that is no causal decoder, a tokenizer with more
            tokens than the model, or an output that depends on a later token.
        RequestError: no such device, or none in reach; a tokenizer that is missing, not a fast one,
            or given for a model that has its own; a module of another kind.
    """
    if isinstance(model, nn.Module):
        model = unwrap(model)
        return _in_memory(model, tokenizer, name or type(model).__name__)
    if tokenizer is not None or name is not None:
        raise RequestError(
            f"{model}: has a tokenizer and a name of its own; leave out tokenizer and name"
        )
    return open_checkpoint(model, device_of(device), trust_code)


def open_models(
    models: Sequence[str | Path | Checkpoint] | str | Path | Checkpoint, device: str
) -> list[Checkpoint]:
    """Opens models as `open_model` does, before anything is computed; open ones stay open."""
    single = isinstance(models, str | nn.Module)
    given: Any = [*models] if isinstance(models, Iterable) and not single else [models]
    device_of(device)  # which is refused though all are open
    for model in given:
        if isinstance(model, Checkpoint):
            model.check_unchanged(read=not is_nested())
    return [m if isinstance(m, Checkpoint) else open_model(m, device) for m in given]


def _in_memory(module: Any, tokenizer: Any, name: str) -> Checkpoint:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        given = "none was given" if tokenizer is None else f"it is a {type(tokenizer).__name__}"
        raise RequestError(
            f"tokenizer of {name}: {given}; give open_model(module, tokenizer=...) a Tokenizer or "
            "a fast tokenizer of transformers"
        )
    foreign = not isinstance(module, LanguageModel)
    if foreign and not hasattr(getattr(module, "config", None), "model_type"):
        raise RequestError(
            f"{name}: a {type(module).__name__} is no causal model; give one of "
            "transformers, or an arch.LanguageModel"
        )
    check_finite(dict(module.named_parameters()), name)
    copied = copy_module(module, name)
    with refusals(name):
        model: LanguageModel = wrap_model(copied) if foreign else copied  # pyright: ignore
    backend = read_tokenizer(backend.to_str(), f"the tokenizer of {name}")  # the caller's stays
    backend = fit_tokenizer(backend, model.embedding.num_embeddings, name)
    say_how_text_is_read(backend, name)
    check_causal(model)
    model = drop_padding(model, 1 + largest_id(backend))
    meta = {"name": name, "source": "memory", **read_facts(module, model, tokenizer, backend)}
    weights, given = hash_module(module, model), ref(module)
    return Checkpoint(model, model.config, backend, meta, Path(name), weights=weights, given=given)


def device_of(name: str) -> torch.device:
    """The device of --device.

    Raises:
        RequestError: no such device, or none in reach.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise RequestError(f"--device {name}: allowed are cpu, cuda and auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise RequestError("--device cuda: no CUDA device is in reach; use --device cpu")
    return torch.device(name)
