"""Signals that end a run early: after the current step, saved."""

import contextlib
import os
import signal
import stat
import sys
import threading
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from arch.kernels.process import discard_output
from train.steps.module import ends_step

ANNOUNCED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which schedulers announce the end of a job's time: SIGUSR2 is LSF's, Grid Engine's and
submitit's."""


class StopOnSignal(Callback):
    """SIGTERM, SIGUSR1, SIGUSR2, SIGHUP and Ctrl-C end the run after the current step, saved.

    A second signal of these kinds ends it at once, but for SIGHUP, which a shell repeats when its
    terminal is closed; a run under `nohup` goes on. Several devices stop after the same step: the
    first at which they agree, every `every` steps. Asking at every step would have each of them
    wait for the others, and for its own work.

    Comes before `ModelDirectories` among the callbacks.

    Args:
        every: steps between the lines of progress, at which a run waits for its devices anyway.
    """

    def __init__(self, every: int) -> None:
        self.received: int | None = None
        self._every = every

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over before the first validation, too."""
        if trainer.state.fn is TrainerFn.VALIDATING:
            self.on_train_start(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over, also from Lightning, which puts them back at the end.

        Python gives them to its main thread alone: a run in another is ended by nobody.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (*ANNOUNCED, signal.SIGINT):
            signal.signal(number, self._note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, self._note)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stops every device after the same step."""
        stop, parallel = self.received is not None, trainer.world_size > 1
        if not ends_step(trainer, batch_idx) or (parallel and trainer.global_step % self._every):
            return
        if parallel:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
        trainer.should_stop = trainer.should_stop or stop

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
            _leave_terminal()
        for announced in ANNOUNCED:
            signal.signal(announced, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_terminal() -> None:
    """Sends nowhere what is still printed to a terminal that was closed: it would be an error."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # no file is behind the stream
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                discard_output(stream)
