"""The figures of a training, every so many steps: recorded, shown, and judged."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text
from torch import Tensor

from train.module import LanguageModule, bits_per_byte, ends_step
from train.records import Records
from train.watch import Watch


class Progress(Callback):
    """Reports loss, bits/byte, learning rate, tokens/s and the time left every `every` steps.

    The device is waited for on those steps only.

    Args:
        records: where the figures go; only the process that records also shows them.
        watch: told of every loss.
        every: steps between reports.
        bytes_per_token: of the training data.
        utilisation: from tokens/s to the share of the device's peak, where that is known.
    """

    def __init__(
        self,
        records: Records,
        watch: Watch,
        every: int,
        bytes_per_token: float,
        utilisation: Callable[[float], float | None] = lambda speed: None,
    ) -> None:
        self._records, self._watch, self._every = records, watch, every
        self._bytes_per_token, self._utilisation = bytes_per_token, utilisation
        self._display = Display()
        self._losses: list[Tensor] = []
        self._first_step = self._last_step = self._tokens = 0
        self._since = 0.0
        self._steady: tuple[int, float] | None = None

    def open(self) -> None:
        """Shows things from here on: for the process that records."""
        self._display.open()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._first_step = self._last_step = trainer.global_step
        self._tokens = _tokens_seen(trainer)
        self._since, self._steady = time.perf_counter(), None
        self._display.start(trainer.global_step, trainer.max_steps)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Reports when it is time to."""
        self._losses.append(outputs["loss"].detach())
        if not ends_step(trainer, batch_idx):
            return
        step = trainer.global_step
        if step % self._every and step != trainer.max_steps and step - self._first_step > 1:
            return
        steps, loss = self._waiting(trainer)
        self._losses.clear()
        self._last_step = step
        assert isinstance(pl_module, LanguageModule)
        # In 16-mixed an overflow is nothing new: the step is left out and the scale lowered.
        overflow = trainer.precision == "16-mixed" and not pl_module.gradient_norm.isfinite()
        gradient_norm = 0.0 if overflow else float(pl_module.gradient_norm)
        warning = self._watch.see(step, steps, loss, gradient_norm)
        now, tokens = time.perf_counter(), _tokens_seen(trainer)
        speed = (tokens - self._tokens) / (now - self._since)
        row = {
            "step": step,
            "tokens_seen": tokens,
            "loss": loss,
            "bits_per_byte": bits_per_byte(loss, self._bytes_per_token),
            "lr": pl_module.learning_rate(step - 1),
            "gradient_norm": None if overflow else gradient_norm,
            "tokens_per_second": speed,
        }
        share = self._utilisation(speed)
        if share is not None:
            row["mfu"] = share
        remaining = self._remaining(step, trainer.max_steps, now)
        self._since, self._tokens = now, tokens
        self._records.add(row)
        figures = (
            f"loss {loss:.3f}  bits/byte {row['bits_per_byte']:.3f}  lr {row['lr']:.2e}  "
            f"{speed:,.0f} tokens/s" + ("" if share is None else f"  MFU {share:.1%}")
        )
        self._display.passing(step, trainer.max_steps, figures, remaining)
        if warning is not None:
            self.say(f"step {step}  warning: {warning}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The lines stay."""
        self._display.stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """What went wrong is said below the lines, not in the bar."""
        self._display.stop()

    def state_dict(self) -> dict[str, Any]:
        """What the watch knows."""
        return self._watch.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on watching."""
        self._watch.restore(state_dict)

    def rising(self, trainer: Trainer) -> bool:
        """Whether the loss seems to be jumping just now; waits for the device."""
        return self._watch.rising(*self._waiting(trainer))

    def report(self, row: dict[str, Any], line: str) -> None:
        """Records other figures, and shows them on a line that stays."""
        self._records.add(row)
        self.say(line)

    def say(self, line: str) -> None:
        """Shows a line that stays."""
        self._display.say(line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps what is done inside (saving, validation) out of tokens/s and the time left."""
        before = time.perf_counter()
        yield
        spent = time.perf_counter() - before
        self._since += spent
        if self._steady is not None:
            step, start = self._steady
            self._steady = step, start + spent

    def _remaining(self, step: int, total: int, now: float) -> str:
        """The time left, by the mean of the steps after the first, which compiles the model."""
        if self._steady is None:
            self._steady = step, now
            return "time left not known yet"
        first, start = self._steady
        return f"{duration((total - step) * (now - start) / (step - first))} left"

    def _waiting(self, trainer: Trainer) -> tuple[int, float]:
        """How many steps are not reported yet, and their mean loss over all parts and devices."""
        if not self._losses:
            return 0, 0.0
        mean = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        # Lightning hands out each part's loss already divided by the number of parts.
        loss = float(mean) * trainer.accumulate_grad_batches
        return trainer.global_step - self._last_step, loss


class Display:
    """A bar that moves on a terminal, lines on a pipe; nothing, but for the process that records.

    Drawn only when there is something new: no thread of its own runs beside the training.
    """

    def __init__(self) -> None:
        self._console: Console | None = None
        self._live: Live | None = None
        self._bar: Bar | None = None
        self._task = TaskID(0)

    def open(self) -> None:
        """Shows lines from here on."""
        self._console = Console(highlight=False, markup=False, emoji=False)

    def start(self, step: int, total: int) -> None:
        """On a terminal, a bar at the bottom from here to `stop`."""
        console = self._console
        if console is None or not console.is_terminal or console.is_dumb_terminal:
            return
        self._bar = Bar(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            expand=True,
        )
        self._task = self._bar.add_task("", total=total, completed=step)
        self._live = Live(self._bar, console=console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def passing(self, step: int, total: int, figures: str, left: str) -> None:
        """Shows where the training stands: the bar and the figures below it, or a line."""
        if self._live is None or self._bar is None:
            self.say(f"step {step:>{len(str(total))}}/{total}  {figures}  {left}")
            return
        self._bar.update(self._task, completed=step, description=left)
        text = Text(figures, no_wrap=True, overflow="ellipsis")
        self._live.update(Group(self._bar, text), refresh=True)

    def say(self, line: str) -> None:
        """Shows a line that stays."""
        if self._console is not None:
            self._console.print(line, soft_wrap=True)

    def stop(self) -> None:
        """Takes the bar away; the lines stay."""
        if self._live is not None:
            self._live.stop()
        self._live = self._bar = None


def duration(seconds: float) -> str:
    """As `1:02:03` or `2:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _tokens_seen(trainer: Trainer) -> int:
    return trainer.datamodule.tokens_seen  # pyright: ignore[reportAttributeAccessIssue]
