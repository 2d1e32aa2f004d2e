"""Every setting of a run, and what it counts for; the docstrings are what `--help` shows."""

import dataclasses
import math
import os
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Literal

from arch.storage.runs import PRETRAINED

SEEDS = 2**32 - 1
"""Largest seed: numpy takes no larger one."""
PAIRS = "pairs"
"""An `--init_from` that names no model."""
INIT_HASH = "init_from_sha256"
"""What a run records of the weights that it took of another model, whose path may hold others."""
REMNANT = str(Path(__file__).resolve().parents[1] / "remnant.py")
"""Runs a command of a room, whatever the working directory holds, such as an eval.py."""
BOUNDS = {"at least": ge, "at most": le, "above": gt, "below": lt}
UNRECORDED = {
    "model", "run", "data", "resume", "trust_code", "valid_fraction", "recipe", "eval",
    "eval_every", "eval_wait",
}  # fmt: skip
"""Settings that a model directory does not record: its config.json has the model's own and
`data_sha256` stands for the data; the others change no model."""
RECORDED_UNLESS = {"dropout": 0.0}
"""Values at which a setting is not recorded: it came later, and earlier models had no other."""
REPORTING = {
    "save_steps", "save_every", "save_best", "checkpoint_every", "validate_every",
    "validate_tokens", "early_stopping", "log_every", "loggers", "wandb", "wandb_project",
    "wandb_group", "wandb_tags",
}  # fmt: skip
"""Settings that change no weight of any step: when a run is saved, validated and reported."""
NOT_IN_MODEL_ID = REPORTING | {
    "seed", "precision", "compile", "checkpoint_activations", "layout",
    "trainer.accelerator", "trainer.devices", "trainer.strategy", "trainer.num_nodes",
    "trainer.max_steps", "batch.micro", "vocab_multiple", "tf32",
    "machine.threads", "machine.instructions", "machine.torch", "machine.numpy", "machine.code",
}  # fmt: skip
"""Settings that steps and seeds of one model need not share: how often a run is saved and reported,
how long it is, and how a device computes a step."""
PER_PROCESS = {
    "run", "resume", "init_from", "trust_code", "recipe", "eval", "loggers", "wandb",
    "wandb_project", "wandb_group", "wandb_tags", "compile", "checkpoint_activations", "tf32",
    "trainer.accelerator", "trainer.devices",
}  # fmt: skip
"""Settings that the processes of a run need not share: where files lie on a machine, what the first
does alone, and how a device computes a step."""
FIXED = ("model.", "data_sha256", "seed", "optimizer.name", "optimizer.muon_mixing")
"""How the names begin of settings that no run changes on its way."""
GROUPS = ("optimizer.embedding_lr",)
"""Settings by which the optimiser has a group of weights more, which no run gets on its way."""


class RunError(ValueError):
    """Bad input or a run gone wrong, in one line: what was seen, and how to mend it."""


@dataclass
class RunSettings:
    """What to train on, where to, and how often to look; these flags have no prefix."""

    data: str | None = None
    """Directory of packed data, as written by `python -m tokenizer pack`; or stories, for which a
    tokenizer of at most model.vocab_size entries is trained: a .txt, .jsonl, .json, .csv or
    .parquet file, a folder of them, or `toy`."""
    run: str | None = None
    """Directory of the run: config, checkpoints, model directories, metrics."""
    resume: str = "never"
    """never; auto (the run's last checkpoint, if there is one, else that which it began from, if
    any); or the path of a checkpoint."""
    init_from: str | None = None
    """Weights to start from: a model directory, or `hf:` and a Llama in transformers' layout (a
    directory, or a name on the hub). Weights that do not fit keep their initial values. Or `pairs`:
    the embedding and the head start from the counts of pairs of tokens in the data (`./pairs` is a
    directory)."""
    trust_code: bool = False
    """Whether the model of init_from may name mixers outside this project, whose code then runs."""
    recipe: str | None = None
    """Name of the recipe, for Weights & Biases; that of --config when not given."""
    seed: int = 0
    """Seed of the initial weights and of the order of the data."""
    precision: Literal["auto", "32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"] = "auto"
    """auto is bf16-mixed on a GPU that has it, and for long runs on a CPU that has it, else
    32-true; a GPU that has fp16 alone, such as a Turing card, is faster with 16-mixed. bf16-true
    keeps the weights in bfloat16, too, and loses steps of less than about 1/500 of a weight."""
    tf32: bool = False
    """Whether a GPU multiplies fp32 matrices in TF32: faster, with 10 bits of mantissa."""
    compile: bool | Literal["auto"] = "auto"
    """Whether the model and its loss are compiled, in place; auto: on a GPU, and where precision
    is auto, too, for long runs on a CPU that multiplies bfloat16."""
    dropout: float = 0.0
    """Probability that an output of a token mixer or a channel mixer is set to 0 in training."""
    checkpoint_activations: bool = False
    """Whether the backward pass computes each block again, rather than keep what is inside it:
    less memory, more work."""
    save_steps: list[int] = field(default_factory=list)
    """Steps after which a model directory is written, besides step 0 and the last one."""
    save_every: int | None = None
    """Steps between model directories, besides those of save_steps."""
    checkpoint_every: int = 500
    """Steps between checkpoints, which are for resuming only; there is one before each validation,
    too."""
    validate_every: int = 500
    """Steps between validations; every saved model is validated too."""
    validate_tokens: int | None = None
    """How much of the validation split is used, in tokens; all of it when not given."""
    valid_fraction: float | None = None
    """Fraction of a text given as data that is held out for validation; 0.05 when not given."""
    save_best: bool = False
    """Whether the model with the lowest validation loss so far is kept in `RUN/best`."""
    early_stopping: int | None = None
    """The run ends after so many validations in a row without a lower loss than before."""
    layout: Literal["packed", "rows"] | None = None
    """Layout that the data must have; either when not given."""
    minutes: float | None = None
    """Minutes of training, instead of trainer.max_steps: as many steps as fit into them, at most a
    tenth of which are warm-up."""
    log_every: int = 10
    """Steps between lines of progress."""
    eval_every: int | None = None
    """Steps between evaluations of the saved model by `python -m eval`; step 0 and the last one are
    evaluated too. No evaluations when not given."""
    eval: str = "quick"
    """Suite of `python -m eval invert` that an evaluation asks."""
    eval_wait: bool = True
    """Whether training waits for an evaluation; if not, its figures come later."""
    loggers: list[Literal["csv", "tensorboard", "trackio"]] = field(default_factory=list)
    """Loggers that are given the figures too: csv and tensorboard write into the run directory,
    trackio into its local board, which `trackio show` opens (`pip install -e '.[boards]'`)."""
    wandb: Literal["offline", "online", "disabled"] = field(default_factory=lambda: _wandb_mode())
    """Weights & Biases: offline writes into the run directory and needs no account. When not given,
    it is WANDB_MODE of the environment, else offline."""
    wandb_project: str = field(default_factory=lambda: os.environ.get("WANDB_PROJECT") or "remnant")
    """Project that the run belongs to in Weights & Biases; WANDB_PROJECT when not given."""
    wandb_group: str | None = None
    """Group of runs in Weights & Biases; mixers, width and depth when not given."""
    wandb_tags: list[str] = field(default_factory=list)
    """Tags in Weights & Biases, besides the names of the mixers."""

    def __post_init__(self) -> None:
        for name in ("data", "run", "resume", "init_from"):
            setattr(self, name, _expand_home(name, getattr(self, name)))
        counts = "checkpoint_every", "validate_every", "log_every", "save_every", "eval_every"
        _check("", self, "at least 1", *counts, "validate_tokens", "early_stopping")
        _check("", self, "at least 0", "seed", "save_steps", "dropout")
        _check("", self, "above 0", "minutes", "valid_fraction")
        _check("", self, "below 1", "dropout", "valid_fraction")
        _check("", self, f"at most {SEEDS}", "seed")


def _wandb_mode() -> Any:
    """What the environment says of W&B; offline where that is no mode of ours: W&B names it."""
    mode = os.environ.get("WANDB_MODE")
    return mode if mode in ("online", "disabled") else "offline"


@dataclass
class BatchSettings:
    """How many windows of `model.context` tokens make one step."""

    size: int = 32
    """Windows per optimiser step, over all devices and accumulated parts."""
    micro: int | None = None
    """Windows per device at once; fewer than its share of size means gradient accumulation."""

    def __post_init__(self) -> None:
        _check("batch.", self, "at least 1", "size", "micro")

    def split(self, devices: int) -> tuple[int, int]:
        """Windows per device at once, and how many such parts make a step.

        Raises:
            RunError: the size does not divide.
        """
        micro = self.micro or self.size // devices
        parts, rest = divmod(self.size, micro * devices) if micro else (0, 1)
        if rest:
            raise RunError(
                f"--batch.size {self.size} is not a multiple of {micro or 1} windows on each of "
                f"{devices} devices; change --batch.size, --batch.micro or --trainer.devices"
            )
        return micro, parts


@dataclass
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter, 1711.05101), alone or beside Muon."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon steps the matrices of the blocks' linear layers, and AdamW the rest."""
    lr: float = 1e-3
    """Highest learning rate, reached after the warm-up."""
    embedding_lr: float | None = None
    """The embedding's own highest rate; lr when not given."""
    muon_lr: float | None = None
    """Muon's own highest rate; lr when not given: its steps are scaled to be like AdamW's."""
    muon_momentum: float = 0.95
    """Decay of Muon's running mean of the gradient."""
    muon_mixing: bool = False
    """Whether Muon takes the mixing matrices too; their update stays below the diagonal."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.95
    """Decay of the gradient's running square."""
    eps: float = 1e-8
    """Added to the root of the running square."""
    weight_decay: float = 0.1
    """Decoupled decay of the linear layers' matrices and of a mixer's own; nothing else decays."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        _check("optimizer.", self, "above 0", "lr", "embedding_lr", "muon_lr")
        momenta = ("beta1", "beta2", "muon_momentum")
        _check("optimizer.", self, "at least 0", "eps", "weight_decay", "clip", *momenta)
        _check("optimizer.", self, "below 1", *momenta)
        _unused("optimizer.", self, "name", "muon", muon_mixing=False, muon_lr=None)


@dataclass
class ScheduleSettings:
    """The learning rate over `trainer.max_steps` steps."""

    warmup_steps: int = 100
    """Steps of linear warm-up before the highest rate; the first is above 0."""
    decay: Literal["cosine", "linear", "wsd", "none"] = "cosine"
    """Shape of the fall after the warm-up; wsd stays at the highest rate first."""
    decay_steps: int | None = None
    """wsd only: steps that the fall at the end takes; a fifth of all when not given."""
    floor: float = 0.1
    """Where the fall ends, as a fraction of the highest rate."""

    def __post_init__(self) -> None:
        _check("schedule.", self, "at least 0", "warmup_steps", "floor")
        _check("schedule.", self, "at most 1", "floor")
        _check("schedule.", self, "at least 1", "decay_steps")
        _unused("schedule.", self, "decay", "wsd", decay_steps=None)

    def within(self, total: int) -> "ScheduleSettings":
        """This schedule for a run of `total` steps: a warm-up of a tenth of them at most.

        A fall of `decay_steps` is at most the rest.
        """
        warmup = min(self.warmup_steps, total // 10)
        fall = self.decay_steps and max(1, min(self.decay_steps, total - warmup))
        return dataclasses.replace(self, warmup_steps=warmup, decay_steps=fall)

    def cooldown(self, total: int) -> int:
        """Steps of wsd's fall at the end of `total`.

        Raises:
            RunError: the warm-up and the fall together are longer than the run.
        """
        steps = max(1, total // 5) if self.decay_steps is None else self.decay_steps
        if self.warmup_steps + steps > total:
            raise RunError(
                f"--schedule.warmup_steps {self.warmup_steps} and a fall of {steps} steps are "
                f"longer than --trainer.max_steps {total}; lower --schedule.warmup_steps or "
                "--schedule.decay_steps"
            )
        return steps


@dataclass
class TrainerSettings:
    """What Lightning's `Trainer` is given."""

    accelerator: str = "auto"
    """Kind of device: cpu, gpu, ...; auto takes a CUDA GPU, or else the CPU, also on a Mac."""
    strategy: Literal["auto", "ddp"] = "auto"
    """ddp for several devices; auto chooses it there."""
    devices: int | str | list[int] = 1
    """How many devices on each machine, or which."""
    num_nodes: int = 1
    """How many machines."""
    max_steps: int = 1000
    """Optimiser steps in all."""
    deterministic: bool | Literal["warn"] | None = None
    """Whether only operations are used that give the same bits each time; when not given, only on a
    CPU where the run is compiled."""

    def __post_init__(self) -> None:
        _check("trainer.", self, "at least 1", "max_steps", "num_nodes")


def _check(section: str, settings: object, bound: str, *names: str) -> None:
    """Refuses numbers beyond a bound, such as `at least 1`; what is not given is None."""
    how, _, limit = bound.rpartition(" ")
    for name in names:
        value = getattr(settings, name)
        for number in value if isinstance(value, list) else [] if value is None else [value]:
            known = isinstance(number, int | float) and number != math.inf
            if not known or not BOUNDS[how](number, float(limit)):  # NaN is refused too
                raise RunError(f"--{section}{name} is {value!r}; it must be finite and {bound}")


def _expand_home(name: str, value: str | None) -> str | None:
    """A path with the home directory for its `~`, as shells leave it in `--data=~/stories`.

    Raises:
        RunError: it is empty, holds a NUL, is not in UTF-8 (no model there could be opened), or
            names no home.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise RunError(f"--{name} is {value!r}; it must be a path, or ~/ and a path")
    kind = PRETRAINED if value.startswith(PRETRAINED) else ""
    path = os.path.expanduser(value.removeprefix(kind))
    known = path.encode(errors="replace").decode() == path
    if not path or "\0" in path or path.startswith("~") or not known:
        utf8 = "" if known else " in UTF-8"
        raise RunError(f"--{name} is {value!r}; it must be a path{utf8}, or ~/ and a path")
    return kind + path


def _unused(section: str, settings: object, by: str, kind: str, **defaults: object) -> None:
    """Refuses settings that only one kind reads, where another is chosen."""
    chosen = getattr(settings, by)
    for name, default in defaults.items():
        value = getattr(settings, name)
        if chosen != kind and value != default:
            raise RunError(
                f"--{section}{name} is {value}, --{section}{by} is {chosen}; only {kind} uses it"
            )
