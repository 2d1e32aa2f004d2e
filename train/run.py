"""A run, from its settings to its last model directory."""

import dataclasses
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer, seed_everything
from tokenizers import Tokenizer

from arch import LanguageModel, check_causal, count_parameters
from arch.convert import download, open_directory
from tokenizer import tokenizer_hash
from train.data import PackedDataModule
from train.log import Log
from train.module import LanguageModule
from train.progress import Progress, Watch
from train.rundir import AtomicCheckpointIO, RunDirectory, changed_settings
from train.saving import Saving, StopOnSignal, stalled
from train.settings import Recipe, RunError
from train.speed import busy_machine, prepare, use_machine, utilisation_of

HUB = "hf:"
VOCABULARY = ("embedding.weight", "head.weight")


class Run:
    """A run that is checked and built, with nothing written yet.

    Raises:
        RunError, arch.ModelError, tokenizer.CorpusError: bad input, in one line.
    """

    def __init__(self, recipe: Recipe) -> None:
        settings, self.total = recipe.run, recipe.trainer.max_steps
        self.recipe = recipe
        data = recipe.open_data()
        self.directory = RunDirectory(Path(recipe.given("run")))
        self.main = rank_zero_only.rank == 0
        # Other devices' processes start when the first has made the directory: not a clash.
        resume = settings.resume if self.main or settings.resume != "never" else "auto"
        self.datamodule = PackedDataModule(
            data, recipe.model.context, recipe.batch, settings.seed, settings.validate_tokens
        )
        identity = {
            "seed": settings.seed,
            "model": json.loads(recipe.model.to_json()),
            "data_sha256": data.hash,
            "optimizer": {
                "name": recipe.optimizer.name,
                "muon_mixing": recipe.optimizer.muon_mixing,
            },
        }
        recorded = recipe.recorded() | {"machine": use_machine()}
        self.start = self.directory.start_from(resume, identity, recorded)
        seed_everything(settings.seed, verbose=False)
        model = LanguageModel(recipe.model)
        self._initial = None
        if settings.init_from and not self.start.checkpoint:
            self._initial = start_from_weights(model, settings.init_from, data.tokenizer_json)
        check_causal(model)
        self.module = LanguageModule(model, recipe.optimizer, recipe.schedule, self.total)
        self.log = Log(self.directory, settings, recipe.plain())
        warm_up, done = recipe.schedule.warmup_steps, self.start.step
        progress = Progress(
            self.log,
            Watch(self.directory, settings.stop_on_spike, warm_up, done),
            settings.log_every,
            data.bytes_per_token("train"),
            lambda speed: self._utilisation(speed),
        )
        self.stop = StopOnSignal(settings.log_every)
        saving = Saving(self.directory, recipe, data, identity, progress, self.start)
        self.trainer = build_trainer(recipe, self.directory, [self.stop, progress, saving])
        _, self.trainer.accumulate_grad_batches = recipe.batch.split(self.trainer.world_size)
        prepare(self.module, settings, self.trainer)
        self._utilisation = utilisation_of(self.module, self.trainer)

    def fit(self) -> int | None:
        """Trains to the last step.

        Returns:
            The signal that ended the run early, if one did.

        Raises:
            RunError: the directory cannot be written, the disk is full, or the loss is no number.
        """
        start, failed = self.start, True
        if self._complete():
            return None
        if self.main:
            self.directory.prepare(yaml.safe_dump(self.recipe.plain(), sort_keys=False), start)
            self.log.start(start.step if start.checkpoint else None)
            for path, reason in start.unreadable.items():
                self.log.say(
                    f"{path.name} cannot be read ({reason}) and is now called "
                    f"{path.with_suffix('.unreadable').name}; going on from the one before"
                )
        self.log.say(self._describe())
        if self.main and (busy := busy_machine(self.trainer)):
            self.log.say(busy)
        for line in changed_settings(start.history):
            self.log.say(line)
        if self._initial is not None:
            self.log.say(self._initial)
        try:
            with warnings.catch_warnings():
                # Lightning's own use of torch, which nobody can mend here.
                warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprec")
                self.trainer.fit(
                    self.module,
                    datamodule=self.datamodule,
                    ckpt_path=start.checkpoint,
                    weights_only=True,
                )
            failed = False
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"the device is out of memory after step {self.trainer.global_step}; what was saved"
                " stays; lower --batch.micro, then go on with --resume auto"
            ) from error
        finally:
            self.log.close(failed)
            self.directory.release()
        if self.stop.received is not None:
            step = self.trainer.global_step
            self.log.say(f"stopped at step {step} and saved; go on with --resume auto")
        return self.stop.received

    def _complete(self) -> bool:
        """Whether the checkpoint is that of a finished run, which is then printed."""
        step, total, losses = self.start.step, self.total, self.directory.validations()
        if step > total or (step == total and step in losses):
            why = f"{step} of {total} steps; raise --trainer.max_steps"
        elif step and stalled(
            [loss for at, loss in losses.items() if at <= step], self.recipe.run.early_stopping
        ):
            why = f"it stopped early, after {step} steps; raise --early_stopping"
        else:
            return False
        print(f"{self.directory.path} is complete: {why} to go on")
        return True

    def _describe(self) -> str:
        batch, trainer = self.recipe.batch.size, self.trainer
        epochs = self.total * batch / self.datamodule.train_windows.count
        return (
            f"{self.directory.path}: {count_parameters(self.module.model):,} parameters on "
            f"{trainer.world_size} {trainer.strategy.root_device.type}, {trainer.precision}; "
            f"{self.total:,} steps of {batch} x {self.recipe.model.context} tokens, "
            f"{epochs:.2f} epochs"
            + (f"; from step {self.start.step}, {path}" if (path := self.start.checkpoint) else "")
        )


def start_from_weights(model: LanguageModel, source: str, tokenizer_json: str) -> str:
    """Copies every weight that `model` has under the same name and in the same shape, in place.

    The source is a model directory, or `hf:` and a directory or a hub's name of a Llama in
    transformers' layout; its tokenizer must be that of the data. The rows of `vocab_multiple`,
    which no token has, keep their own weights. So does what differs, such as the mixers of a
    hybrid, or a triangle of another context.

    Returns:
        A line that says what was copied, and what was not.

    Raises:
        RunError: another tokenizer, or nothing fits.
        arch.ModelError: the source is not there, or no model.
    """
    name = source.removeprefix(HUB)
    path = name if name == source or Path(name).is_dir() else download(source)
    loaded = open_directory(path)
    tokenizers = (Tokenizer.from_str(text) for text in (loaded.tokenizer_json, tokenizer_json))
    if len({tokenizer_hash(tokenizer) for tokenizer in tokenizers}) > 1:
        raise RunError(
            f"--init_from {source}: its tokenizer is not that of --data; pack the data with its "
            "tokenizer.json"
        )
    state = loaded.model.state_dict()
    copied, kept, count = 0, [], 0
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            weights = state.get(name)
            target = tensor[: model.config.vocab_size] if name in VOCABULARY else tensor
            if weights is None or weights.shape != target.shape:
                kept.append(name)
            else:
                target.copy_(weights)
                copied, count = copied + 1, count + weights.numel()
    if not copied:
        configs = (loaded.model.config, model.config)
        sizes = [f"{' '.join(c.mixers)}, d {c.d_model}, n {c.n_layers}" for c in configs]
        raise RunError(
            f"--init_from {source}: none of its weights fits; its model is {sizes[0]}, this one "
            f"{sizes[1]}; change --model"
        )
    more = f" and {len(kept) - 4} more" if len(kept) > 4 else ""
    rest = f"; initial weights of their own: {', '.join(kept[:4])}{more}" if kept else ""
    return f"from {source}: {copied} tensors of {copied + len(kept)}, {count:,} weights{rest}"


def build_trainer(recipe: Recipe, directory: RunDirectory, callbacks: list[Any]) -> Trainer:
    """Lightning's trainer, as a recipe has it.

    Raises:
        RunError: a device that is not there, or the like.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    precision = recipe.run.precision
    gpu = recipe.trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    if precision == "auto":
        bfloat16 = gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if bfloat16 else "32-true"
    if precision == "16-mixed" and not gpu:
        raise RunError("--precision 16-mixed needs a GPU; without one use 32-true or bf16-mixed")
    # In a SLURM job Lightning would save, and ever after start from, checkpoints of its own.
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    try:
        return Trainer(
            **dataclasses.asdict(recipe.trainer),
            precision=precision,
            max_epochs=-1,
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO(), *slurm],
            default_root_dir=directory.path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            limit_val_batches=0,  # `Saving` validates, at steps of its own choice
        )
    except (ValueError, TypeError, MisconfigurationException) as error:
        # Lightning's check of its own flags: a device that is not there, ...
        raise RunError(f"--trainer: {' '.join(str(error).split())}") from error
