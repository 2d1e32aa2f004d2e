"""A run, from its settings to its last model directory."""

import copy
import dataclasses
import json
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Trainer, seed_everything

from arch import LanguageModel, check_causal, count_parameters, describe
from arch.errors import is_out_of_memory
from arch.mixers import hash_foreign
from arch.storage.files import read_json
from arch.storage.values import YamlDumper
from tokenizer import PackedData
from train.processes.launcher import is_first
from train.processes.together import alone
from train.recipe import Recipe, flat, model_id
from train.record.evaluate import Evaluations, check_suite
from train.record.log import Log
from train.record.progress import Progress, StepBar, has_terminal
from train.record.saving import Checkpoints, ModelDirectories, since_best
from train.record.stop import StopOnSignal
from train.rundir.resume import changed_settings, changes_since, choose_start, last_model
from train.rundir.rundir import RunDirectory
from train.rundir.verify import find_wrong_tensor
from train.settings import (
    INIT_HASH,
    NOT_IN_MODEL_ID,
    PAIRS,
    RECORDED_UNLESS,
    REPORTING,
    UNRECORDED,
    RunError,
)
from train.steps.budget import TimeBudget, epochs_advice
from train.steps.data import PackedDataModule
from train.steps.initial import start_from_weights
from train.steps.module import LanguageModule
from train.steps.optim import build_optimizer
from train.steps.pairs import start_from_pairs
from train.steps.speed import advise_precision, choose_arithmetic, prepare, use_machine
from train.trainer import build_trainer

LIGHTNING_ADVICE = (
    r"`isinstance\(treespec, LeafSpec\)` is deprec",  # its own use of torch
    "Be aware that when using `ckpt_path`, callbacks",  # a budget, or another one's callback
)


class Run:
    """A run that is checked and built, with nothing written yet, to be fitted once.

    Raises:
        RunError, arch.ModelError, tokenizer.CorpusError: bad input, in one line.
    """

    _fitted = False

    @alone()
    def __init__(self, recipe: Recipe) -> None:
        recipe = copy.deepcopy(recipe)
        recipe.check()
        given = recipe.plain()  # before what is left open is chosen, for this machine
        self._arithmetic = choose_arithmetic(recipe)
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self.recipe, settings, data = recipe, recipe.run, recipe.open_data()
        check_suite(settings)
        self.directory = RunDirectory(Path(recipe.given("run")))
        self.main, self._found = is_first(), self.directory.content()
        if settings.resume == "never" and self.main:  # the others may find what this one has made
            self.directory.refuse_begun()
        self.datamodule = PackedDataModule(
            data, recipe.model.context, recipe.batch, settings.seed, settings.validate_tokens
        )
        fixed = {"model": json.loads(recipe.model.to_json()), "data_sha256": data.hash}
        machine = use_machine() | hash_foreign(recipe.model.mixers)
        recorded = recipe.recorded() | {"machine": machine}
        seed_everything(settings.seed, verbose=False)
        model = LanguageModel(recipe.model)
        optimizer = build_optimizer(model, recipe.optimizer)
        find_fault = partial(find_wrong_tensor, model=model, optimizer=optimizer)
        self.start = choose_start(self.directory, settings.resume, recorded, fixed, find_fault)
        about = {"parameters": count_parameters(model), "data_sha256": data.hash}
        self.log = Log(self.directory, settings, about := recipe.plain() | about)
        self.total, schedule, budget = recipe.trainer.max_steps, recipe.schedule, self._budget()
        if budget:
            self.total = budget.total(self.start.step, self.total)
            schedule = schedule.within(self.total)
        self._initial = self._load_initial(model, data.tokenizer_json, budget)
        about["model_id"] = identity = model_id(
            self.directory.path.resolve().name, recipe.model, self.start.recipe, data.hash
        )
        check_causal(model)
        self.module = LanguageModule(model, recipe.optimizer, schedule, self.total)
        record = {**fixed, **self.start.settings}
        callbacks = self._callbacks(given, data, identity, record, budget)
        self.trainer = build_trainer(recipe, self.directory, callbacks, self.total)
        micro, parts = recipe.batch.split(self.trainer.world_size)
        self.trainer.accumulate_grad_batches = parts
        if has_terminal():
            bar = StepBar(refresh_rate=settings.log_every * parts)
            self.trainer.callbacks.insert(0, bar)  # pyright: ignore
        prepare(self.module, settings, self.trainer, bool(self._arithmetic))
        if self.trainer.precision == "64-true":
            self.module.double()  # as Lightning does later than it reads a checkpoint
        self.module.flops_per_token = work = describe(recipe.model).cost.training_flops
        self.module.flops_per_batch = work * recipe.model.context * micro  # for `ThroughputMonitor`

    def _budget(self) -> TimeBudget | None:
        """The budget of minutes; None for a run whose length is given in steps."""
        settings, recipe = self.recipe.run, self.recipe
        if not settings.minutes:
            return None
        windows = recipe.batch.size, self.datamodule.train_windows.count
        every, spent = settings.log_every, self.start.spent
        return TimeBudget(settings.minutes, every, recipe.schedule, windows, spent, self.log.say)

    def _load_initial(
        self, model: LanguageModel, tokenizer_json: str, budget: TimeBudget | None
    ) -> str | None:
        """Starts a new run from what `--init_from` says; a line about it, if it is given."""
        settings, begun_from = self.recipe.run, self.start.recipe.get("init_from")
        if self.start.checkpoint and settings.init_from != begun_from:
            self.recipe.run = dataclasses.replace(settings, init_from=begun_from)
            return f"--init_from {settings.init_from} has no effect: the run has begun"
        if self.start.checkpoint or not settings.init_from:
            return None
        if settings.init_from != PAIRS:
            line, digest = start_from_weights(
                model, settings.init_from, tokenizer_json, settings.trust_code
            )
            self.start = self.start._replace(recipe=self.start.recipe | {INIT_HASH: digest})
            return line
        began = time.perf_counter()
        line = start_from_pairs(model, self.datamodule.train_windows)
        if budget:
            budget.spend(time.perf_counter() - began)
        return line

    def _callbacks(
        self,
        given: dict[str, Any],
        data: PackedData,
        identity: str,
        record: dict[str, Any],
        budget: TimeBudget | None,
    ) -> list[Any]:
        """Lightning's callbacks in the order in which each of them relies on those before."""
        settings, every = self.recipe.run, self.recipe.run.log_every
        self.stop = StopOnSignal(every)
        size = self.datamodule.train_bytes_per_token
        progress = Progress(self.log, self.directory, every, size, bool(settings.minutes))
        self.saving = ModelDirectories(
            self.directory, self.recipe, data, given, self.start, identity, progress, self.log
        )
        checkpoints = Checkpoints(
            self.directory, settings.checkpoint_every, record, progress, self.log
        )
        callbacks = [self.stop, *filter(None, [budget]), progress, self.saving, checkpoints]
        if settings.eval_every:

            def leave_out(trainer: Trainer, seconds: float) -> None:
                progress.restart(trainer)
                if budget:
                    budget.leave_out(seconds)

            evaluations = Evaluations(self.directory, settings, self.log, self.stop, leave_out)
            callbacks.append(evaluations)
        return callbacks

    @alone()
    def fit(self) -> int | None:
        """Trains to the last step.

        Returns:
            The signal that ended the run early, if one did.

        Raises:
            RunError: it was fitted, or its directory is another's by now or cannot be written, the
                disk is full, or the loss is no number.
        """
        start, failed = self.start, True
        if self._complete():
            return None
        self._fitted = True
        try:
            if self.main:
                self._open()
            with warnings.catch_warnings():
                for advice in LIGHTNING_ADVICE:
                    warnings.filterwarnings("ignore", advice)
                given: Any = {"datamodule": self.datamodule, "weights_only": True}
                given["ckpt_path"] = start.checkpoint
                if self.saving.opens(self.total):
                    self.saving.opening = True
                    self.trainer.validate(self.module, verbose=False, **given)
                    self.saving.opening = False
                if start.step < self.total and not self.trainer.should_stop:
                    self.trainer.fit(self.module, **given)
            failed = False
            if self._interruption() is None and (line := self._describe_best()):
                self.log.say(line)
        except SystemExit:  # by which Lightning ends after a second Ctrl-C
            raise KeyboardInterrupt from None
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            step = max(start.step, self.trainer.global_step)
            raise RunError(
                f"the device is out of memory after step {step}; what was saved stays; lower "
                "--batch.micro, then go on with --resume auto"
            ) from error
        finally:
            self.log.close(failed)
            self.directory.release()
            torch.use_deterministic_algorithms(self._deterministic)  # as before this run
        if self._interruption() is not None:
            step = self.trainer.global_step
            self.log.say(f"stopped at step {step} and saved; go on with --resume auto")
        return self._interruption()

    def _interruption(self) -> int | None:
        """The signal that ended the run early; one that comes in its last step did not."""
        step = max(self.start.step, self.trainer.global_step)
        ended = self.saving.stopped_early or step >= self.trainer.max_steps
        return None if ended else self.stop.received

    def _open(self) -> None:
        """Opens the directory, the log and the loggers, and says what is about to be trained."""
        start = self.start
        changes = changed_settings(start.history)
        comments = "".join(f"# {line}\n" for line in changes)
        settings = self.recipe.plain()
        if start.checkpoint and not self.directory.checkpoints():  # it is another run's
            settings["resume"] = str(start.checkpoint)
        before, now = self.directory.last_settings(), flat(settings)
        config = yaml.dump(settings, Dumper=YamlDumper, sort_keys=False)
        self.directory.prepare(comments + config, start.unreadable, self._found)
        hidden = self.directory.hide_models(
            start.step, lambda meta: changes_since(meta, start).keys() <= REPORTING
        )
        others = UNRECORDED | REPORTING
        if start.checkpoint is None:  # what goes on has the same data, wherever they lie
            others -= {"data", "valid_fraction"}
        changed = any(before.get(name) != now[name] for name in {*now} - others)
        self.log.start(self.trainer, start.step if start.checkpoint else -1, not changed)
        for path, reason in start.unreadable.items():
            self.log.say(
                f"{path.name} cannot be read ({reason}) and is now called "
                f"{path.with_suffix('.unreadable').name}; going on from the one before"
            )
        advice = advise_precision(self.recipe.run, self.trainer.strategy.root_device)
        about = (self._describe(), self._arithmetic, advice, *self._warn_of_steps())
        lines = [*about, *changes, self._initial]
        if hidden:
            lines.append(
                f"{len(hidden)} models after step {start.step}, trained with other settings, are "
                f"hidden now: {hidden[0]}" + ", ..." * (len(hidden) > 1)
            )
        for line in filter(None, lines):
            self.log.say(line)

    def _complete(self) -> bool:
        """Whether the run is finished, which is then printed, by its checkpoint or last model.

        Raises:
            RunError: it was trained with other settings than it is given now, or by this object.
            arch.ModelError: the meta.json of its last model cannot be read.
        """
        start, step, path = self.start, self.start.step, self.directory.path
        if self._fitted:
            raise RunError(
                f"--run {path}: this Run was fitted before; make another one, with --resume auto "
                "to go on"
            )
        changed = [each["changed"] for each in start.history if each["from_step"] == step]
        last = 0 if self.directory.checkpoints() else last_model(self.directory, start)
        if last > step:
            step = last
            changed = [changes_since(read_json(self.directory.model(last) / "meta.json"), start)]
        total, patience = self.total, self.recipe.run.early_stopping
        until = [loss for at, loss in self.directory.comparable().items() if at <= step]
        if step > total or (step == total and step in self.directory.validated_steps()):
            flag = "--minutes" if self.recipe.run.minutes else "--trainer.max_steps"
            why = f"{step} of {total} steps; raise {flag}"
        elif step and patience and since_best(until) >= patience:
            why = f"it stopped early, after {step} steps; raise --early_stopping"
        else:
            return False
        others = (
            f"{name} {RECORDED_UNLESS.get(name) if old is None else old}, now {new}"
            for settings in changed
            for name, (old, new) in settings.items()
            if name not in {*NOT_IN_MODEL_ID, "minutes"}
        )
        advice, other = f"{why} to go on", " with that, or choose another --run"
        if step > start.step:
            advice, other = "its checkpoints are gone; choose another --run", ""
        if differing := "; ".join(others):
            raise RunError(f"--run {path}: it is complete and had {differing}: {advice}{other}")
        if self.main:
            print(f"{path} is complete: {advice}")
        return True

    def _describe(self) -> str:
        batch, trainer, minutes = self.recipe.batch.size, self.trainer, self.recipe.run.minutes
        epochs = self.total * batch / self.datamodule.train_windows.count
        length = f"{minutes:g} minutes" if minutes else f"{self.total:,} steps"
        path = self.start.checkpoint
        return (
            f"{self.directory.path}: {count_parameters(self.module.model):,} parameters on "
            f"{trainer.world_size} {trainer.strategy.root_device.type}, {trainer.precision}; "
            f"{length} of {batch} x {self.recipe.model.context} tokens"
            + ("" if minutes else f", {epochs:.2f} epochs{epochs_advice(epochs)}")
            + (f"; from step {self.start.step}, {path}" if path else "")
        )

    def _warn_of_steps(self) -> Iterator[str]:
        """Lines where steps that were given do not fit a run whose length is given, too."""
        warmup, settings = self.recipe.schedule.warmup_steps, self.recipe.run
        if settings.minutes:
            return
        if warmup > self.total / 5:
            yield (
                f"the warm-up takes {min(warmup, self.total):,} of {self.total:,} steps; lower "
                "--schedule.warmup_steps, to a tenth of the steps or less"
            )
        late = [step for step in settings.save_steps if step > self.total]
        if late:
            yield f"--save_steps {late}: no model is saved there; the last step is {self.total:,}"

    def _describe_best(self) -> str | None:
        """A line where the model of the last step is not the best that was validated."""
        losses = self.directory.comparable()
        if not losses or min(losses.values()) == losses[max(losses)]:
            return None
        best = min(losses, key=lambda step: losses[step])
        path = self.directory.path
        where = f"{path}@{best}" if self.directory.model(best).is_dir() else ""
        meta = self.directory.best / "meta.json"
        if meta.is_file() and read_json(meta).get("step") == best:
            where = f"{path}@best"
        return f"the lowest validation loss was {losses[best]:.3f}, at step {best}: " + (
            f"{where} is that model" if where else "--save_best true keeps such a model"
        )
