"""How a run shows itself: a bar that moves on a terminal, a line now and then on a pipe."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text


class Display:
    """What one process shows; nothing, unless it is the one that records.

    Drawn only when there is something new: no thread of its own runs beside the training.
    """

    def __init__(self) -> None:
        self._console: Console | None = None
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def open(self) -> None:
        """Shows lines from here on."""
        self._console = Console(highlight=False, markup=False, emoji=False)

    def start(self, step: int, total: int) -> None:
        """On a terminal, a bar at the bottom from here to `stop`."""
        console = self._console
        if console is None or not console.is_terminal or console.is_dumb_terminal:
            return
        self._bar = Progress(
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
