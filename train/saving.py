"""When a run is saved, validated and stopped.

A step's checkpoint and model directory are on the disk before its validation starts. If a run is
killed before a validation ends, the validation is done when the run goes on. Lightning's own
validation comes at even intervals and not at step 0; an interrupted one is not made up for. Its
`ModelCheckpoint` saves before that validation too, but counts the files it keeps in its state, not
in the folder, so files of a killed run would stay.
"""

import math
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tokenizers import Tokenizer

from arch import (
    LanguageModel,
    ModelError,
    add_to_meta,
    check_causal,
    check_generates,
    generate,
    save_model,
)
from tokenizer import END_OF_TEXT, PackedData
from train.module import LanguageModule, bits_per_byte, ends_step
from train.progress import Progress
from train.rundir import IDENTITY, SETTINGS, RunDirectory, Start
from train.settings import Recipe, RunError

SAMPLE_LENGTH, TEMPERATURE = 48, 0.8


class Saving(Callback):
    """Checkpoints, model directories, validations and samples, at their steps.

    Every model directory and every checkpoint records the settings of `start`: those that the run
    began with, and how they were changed. Every checkpoint has the `identity` that a resumed run
    must agree with.

    Raises:
        RunError: a prompt of the samples is empty or too long.
    """

    def __init__(
        self,
        directory: RunDirectory,
        recipe: Recipe,
        data: PackedData,
        identity: dict[str, Any],
        progress: Progress,
        start: Start,
    ) -> None:
        self._directory, self._settings, self._data = directory, recipe.run, data
        self._identity, self._progress, self._done = identity, progress, start.step
        self._log = progress.run_log
        self._tokenizer = Tokenizer.from_str(data.tokenizer_json)
        self._prompts = _prompts(self._tokenizer, recipe)
        self._recorded = {"recipe": start.recipe, "history": start.history}
        self._provenance = {
            "name": directory.path.resolve().name,
            **self._recorded,
            "data": str(data.path),
            "data_sha256": data.hash,
            "data_source": data.meta.get("source"),
            "valid_fraction": data.meta.get("valid_fraction"),
            "git_commit": git_commit(),
        }

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validates the last step if that is missing: Lightning will not train a complete run.

        Prompts of the samples are dropped where the model cannot go on from one.
        """
        try:
            check_generates(pl_module.model)  # pyright: ignore
        except ModelError as error:
            self._log.say(f"no samples are generated: {error}")
            self._prompts = {}
        if self._done == trainer.max_steps and not trainer.strategy.restore_checkpoint_after_setup:
            self._make_up(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the untrained model, or validates the step of the checkpoint if that is missing."""
        if self._done:
            self._make_up(trainer, pl_module)
        else:
            self._work(trainer, pl_module, 0, model=True, validate=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Does what is due after this step."""
        if not ends_step(trainer, batch_idx):
            return
        step, must = trainer.global_step, trainer.should_stop
        last = step == trainer.max_steps
        model, validate = self._due(step, last)
        checkpoint = last or must
        if not checkpoint and _every(self._settings.checkpoint_every, step):
            checkpoint = not self._progress.rising(trainer)
            if not checkpoint:
                self._log.say(f"step {step}  the loss is jumping: no checkpoint is taken")
        validate = validate and (last or not must)  # who stops a run may not wait: see _make_up
        if model or checkpoint or validate:
            self._work(trainer, pl_module, step, model, checkpoint, validate)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Says in the checkpoint which model and data it belongs to, and the settings so far."""
        checkpoint[IDENTITY], checkpoint[SETTINGS] = self._identity, self._recorded

    def _due(self, step: int, last: bool) -> tuple[bool, bool]:
        """Whether a step is worth a model directory, and a validation, which every model has."""
        settings = self._settings
        model = last or step in settings.save_steps or _every(settings.save_every, step)
        return model, model or _every(settings.validate_every, step)

    def _make_up(self, trainer: Trainer, module: Any) -> None:
        model, validate = self._due(self._done, self._done == trainer.max_steps)
        missing = validate and self._done not in self._directory.validations()
        if trainer.strategy.broadcast(missing):
            self._work(trainer, module, self._done, model, validate=True)

    def _work(
        self,
        trainer: Trainer,
        module: Any,
        step: int,
        model: bool,
        checkpoint: bool = False,
        validate: bool = False,
    ) -> None:
        with self._progress.paused():
            if not weights_are_finite(trainer, module):
                raise self._directory.broken(f"the weights are not finite after step {step}", step)
            meta = {"step": step, "tokens_seen": trainer.datamodule.tokens_seen}  # pyright: ignore
            if model:
                self._save_model(trainer, module, self._directory.model(step), meta)
            if checkpoint:
                self._save_checkpoint(trainer, step)
            if validate:
                self._validate(trainer, module, meta, model)

    def _validate(
        self, trainer: Trainer, module: LanguageModule, meta: dict[str, Any], model: bool
    ) -> None:
        step, path = meta["step"], self._directory.model(meta["step"])
        nats, tokens = validation_loss(trainer, module)
        bits = bits_per_byte(nats, self._data.bytes_per_token("valid"))
        figures = {"val_loss": nats, "val_bits_per_byte": bits, "val_tokens": tokens}
        validations = self._directory.validations()
        earlier = [loss for at, loss in validations.items() if at < step]
        earlier = trainer.strategy.broadcast(earlier)
        if model:
            self._write(trainer, path, lambda: add_to_meta(path, figures))
        if trainer.is_global_zero:
            seed = self._settings.seed
            samples = draw_samples(module.model, self._tokenizer, self._prompts, seed)
            self._log.add_samples(step, samples)
            if model:
                self._log.add_model(path, meta | figures)
        if self._settings.save_best and nats < min(earlier, default=math.inf):
            self._save_model(trainer, module, self._directory.best, meta | figures)
        # Last, as this row says that the step is done with: see `_make_up`.
        self._log.add({**meta, **figures})
        self._log.say(
            f"step {step}  valid loss {nats:.3f}  bits/byte {bits:.3f} over {tokens:,} tokens"
            + (f"  -> {path}" if model else "")
        )
        patience = self._settings.early_stopping
        if step < trainer.max_steps and stalled([*earlier, nats], patience):
            self._log.say(
                f"step {step}  stopping early: {patience} validations without a lower loss than "
                f"{min(earlier):.3f}"
            )
            self._save_model(trainer, module, path, meta | figures)
            self._save_checkpoint(trainer, step)
            trainer.should_stop = True

    def _save_model(
        self, trainer: Trainer, module: LanguageModule, path: Path, meta: dict[str, Any]
    ) -> None:
        check_causal(module.model)
        tokenizer_json, meta = self._data.tokenizer_json, self._provenance | meta
        self._write(trainer, path, lambda: save_model(path, module.model, tokenizer_json, meta))

    def _save_checkpoint(self, trainer: Trainer, step: int) -> None:
        path = self._directory.checkpoint(step)
        if trainer.is_global_zero:
            self._log.flush()
        with self._directory.writing(path):
            trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            self._directory.prune(self._settings.keep_checkpoints)

    def _write(self, trainer: Trainer, path: Path, write: Callable[[], object]) -> None:
        """Writes in the first process; the others wait."""
        if trainer.is_global_zero:
            with self._directory.writing(path):
                write()
        trainer.strategy.barrier()


class StopOnSignal(Callback):
    """SIGTERM, SIGUSR1 and Ctrl-C end the run after the current step, saved.

    A second signal of any of these kinds ends it at once. Schedulers announce the end of a job's
    time by SIGUSR1, or whatever they are configured for. Several devices stop after the same step:
    the first at which they agree, every `every` steps. Asking at every step would have each of them
    wait for the others, and for its own work.

    Comes before `Saving` among the callbacks.

    Args:
        every: steps between the lines of progress, at which a run waits for its devices anyway.
    """

    def __init__(self, every: int) -> None:
        self.received: int | None = None
        self._every = every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over, also from Lightning, which puts them back at the end."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._note)
        # Lightning's own question, before every batch, about a signal that is not its any more.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stops every device after the same step."""
        stop, several = self.received is not None, trainer.world_size > 1
        if not ends_step(trainer, batch_idx) or (several and trainer.global_step % self._every):
            return
        if several:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        trainer.should_stop = trainer.should_stop or stop

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stalled(losses: list[float], patience: int | None) -> bool:
    """Whether none of the last `patience` validations has a lower loss than all before them."""
    if patience is None or len(losses) <= patience:
        return False
    return min(losses[-patience:]) >= min(losses[:-patience])


def validation_loss(trainer: Trainer, module: LanguageModule) -> tuple[float, int]:
    """Mean loss in nats over the validation split, and over how many tokens."""
    module.eval()
    with torch.no_grad():
        sums = []
        for i, (inputs, targets, _) in enumerate(trainer.datamodule.val_dataloader()):  # pyright: ignore
            on_device = inputs.to(module.device), targets.to(module.device), 1.0
            sums.append(trainer.strategy.validation_step(on_device, i))
        total = torch.stack(sums).cpu().double().sum(0)  # pyright: ignore
    module.train()
    if trainer.world_size > 1:
        total = trainer.strategy.reduce(total.to(module.device), reduce_op="sum")
    nats, tokens = total.tolist()  # pyright: ignore
    return nats / tokens, int(tokens)


def weights_are_finite(trainer: Trainer, module: LightningModule) -> bool:
    """Whether no weight is infinite or not a number, on any device: they all get one answer."""
    finite = bool(torch.nn.utils.get_total_norm(list(module.parameters())).isfinite())
    if trainer.world_size > 1:
        finite = trainer.strategy.reduce_boolean_decision(finite, all=True)
    return finite


def draw_samples(
    model: LanguageModel, tokenizer: Tokenizer, prompts: dict[str, list[int]], seed: int
) -> list[dict[str, str]]:
    """How the model continues each prompt: its `prompt` and the `text` after it.

    The source of chance is a generator that is seeded anew each time: texts of different steps
    differ by the model alone, and training does not notice.
    """
    device = model.embedding.weight.device
    training, stop = model.training, tokenizer.token_to_id(END_OF_TEXT)
    model.eval()
    samples = []
    for prompt, ids in prompts.items():
        chance = torch.Generator(device).manual_seed(seed)
        given = torch.tensor([ids], device=device)
        tokens = generate(model, given, SAMPLE_LENGTH, TEMPERATURE, stop=stop, generator=chance)
        text = tokenizer.decode(tokens[0, len(ids) :].tolist())
        samples.append({"prompt": prompt, "text": text})
    model.train(training)
    return samples


def git_commit() -> str | None:
    """The commit of this project's checkout, marked where files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        answers = [
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return answers[0].strip() + ("-dirty" if answers[1].strip() else "")


def _prompts(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, list[int]]:
    """The tokens of each prompt of the samples."""
    context = recipe.model.context
    prompts = {prompt: tokenizer.encode(prompt).ids for prompt in recipe.run.sample_prompts}
    for prompt, ids in prompts.items():
        if not 0 < len(ids) < context:
            raise RunError(
                f"--sample_prompts: {prompt!r} is {len(ids)} tokens; allowed: 1 to "
                f"{context - 1}, so that there is something to add in --model.context {context}"
            )
    return prompts


def _every(steps: int | None, step: int) -> bool:
    return steps is not None and step % steps == 0
