"""The command `invert`: which tokens can be recovered from which layer."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.commands.flags import Models, Out, Plugins, Positive, Shard
from eval.commands.result import Result, command, next_step
from eval.commands.suites import read_entries
from eval.inversion.request import Inversion
from eval.messages import RequestError, say
from eval.rows.plugins import run_plugins
from eval.rows.schema import SHUFFLED

if TYPE_CHECKING:
    from eval.inversion.task import Task
    from eval.models.checkpoint import Checkpoint
    from eval.models.text import Prompt


@partial(command, request=Inversion)
def invert(
    models: Models,
    out: Out = None,
    suite: str = "quick",
    device: str = "auto",
    plugin: Plugins = (),
    corpus: str | None = None,
    batch: Positive | None = None,
    limit: Positive | None = None,
    resume: bool = True,
    shard: Shard = None,
    plan: bool = False,
    **given: Any,
) -> Result:
    """Recovers input tokens from a layer's outputs, by search or gradients.

    Everything is checked first; rows that are there already are not redone.

    Args:
        suite: quick, standard, solvers, sources, or a YAML file of yours that names requests; the
            flags below replace its values
        batch: rows that a gradient solver answers at once; default: as many as fit into memory
        limit: stop after about N rows
        resume: continue what is in --out; --no-resume refuses a directory that holds rows
        plan: time a few rows of each solver, print the number of rows and the time for each model,
            and end
    """
    from eval.models.checkpoint import open_models
    from eval.rows.tasks import NO_ROWS, open_results, read_shard, rows_of, run_tasks
    from eval.views.page.recoveries import terminal_text

    if plan and (shard or limit or not resume):
        raise RequestError("--plan prices a whole request; leave out --shard, --limit, --no-resume")
    run_plugins(plugin)
    given = {name: value for name, value in given.items() if value is not None}
    requests = read_entries(suite, given)
    drawn = any(request.draws for request in requests.values())
    opened = OpenModels(open_models(models, device), corpus, drawn)
    shards = read_shard(shard)[1]
    least = None if "count" in given else 1  # prompts of a suite's count that will do
    tasks, left_out = [], []
    for name, request in requests.items():
        try:
            planned, lengths = opened.plan(request, least, batch, shards)
        except RequestError as error:  # this model has no such site, or cannot be changed so
            left_out.append(f"{name} ({error})")
            if len(left_out) == len(requests):
                raise
            continue
        tasks += planned
        chosen = given.keys() >= {"solvers", "slices"}  # a suite means what does not fit
        if refused := request.refusals(lengths, unfit=chosen):
            say(f"left out: {'; '.join(refused)}")
    for line in left_out:
        say(f"left out: {line}")
    order: dict[int, int] = {}  # what is computed of a model is dropped when another's turn comes
    tasks.sort(key=lambda task: order.setdefault(id(task.checkpoint), len(order)))
    if plan:
        return _priced(tasks, out)
    with open_results(out, resume, shard) as results:
        run_tasks(tasks, results, "inverting", limit)
        rows = rows_of(tasks, results)
    # a shard or a limit may leave no rows
    return Result(rows, terminal_text(rows) if rows else NO_ROWS, next_step(results, out))


class OpenModels:
    """Models that are asked, each with its corpus and its controls.

    Args:
        models: open.
        corpus: to draw prompts from; None: that of the models' training.
        prompts: whether prompts are drawn, for which the models must share one corpus. Texts have
            none: of those, each model's search guesses from its own.
    """

    def __init__(self, models: "list[Checkpoint]", corpus: str | None, prompts: bool) -> None:
        from eval.models.corpora import choose_corpora, choose_corpus

        if prompts:
            corpus = choose_corpus(models, corpus)
        self.models = list(zip(models, choose_corpora(models, corpus), strict=True))
        self._controls: dict[tuple[int, str], Checkpoint] = {}

    def plan(
        self, request: Inversion, least: int | None, batch: int | None, shards: int
    ) -> "tuple[list[Task], list[int]]":
        """The work of one request, and the lengths of its prompts.

        Raises:
            RequestError: a model that cannot be asked this, or models of one name that read a text
                in different tokens.
        """
        from eval.inversion.task import plan

        tasks: list[Task] = []
        shards = -(-shards // len(self.models))  # for which one model must have work
        by_name: dict[str, list[Prompt]] = {}
        for checkpoint, corpus in self._with_controls(request.controls):
            prompts = request.draw_prompts(checkpoint, corpus, least)
            name = checkpoint.provenance["name"]
            if by_name.setdefault(name, prompts) != prompts:
                raise RequestError(
                    f"{checkpoint.path}: another model is named {name} too, and reads text "
                    "otherwise; ask them apart"
                )
            tasks += plan(checkpoint, request, prompts, corpus, batch, shards)
        return tasks, sorted({len(p.tokens) for drawn in by_name.values() for p in drawn})

    def _with_controls(self, controls: tuple[str, ...]) -> "Iterator[tuple[Checkpoint, str]]":
        from eval.models.controls import derive

        for number, (model, corpus) in enumerate(self.models):
            yield model, corpus
            for control in controls:
                if control != SHUFFLED:
                    key = number, control
                    if key not in self._controls:
                        self._controls[key] = derive(model, control)
                    yield self._controls[key], corpus


def _priced(tasks: "list[Task]", out: str | None) -> Result:
    """Rows and time of each model as a table, without those that are there already."""
    from eval.commands.price import price
    from eval.drawing.tables import Table, duration_text, terminal
    from eval.rows.store import SHARDS, read_rows

    rows = read_rows(sorted(Path(out).glob(SHARDS))) if out else []
    records = price(tasks, {row["key"] for row in rows})
    lines = [
        [*(str(record[name]) for name in ("model", "step", "rows", "to_do")),
         f"about {duration_text(record['seconds'])}", record["longest"]]
        for record in records
    ]  # fmt: skip
    table = Table(["model", "step", "rows", "to do", "time", "slowest solver"], lines)
    to_do, seconds = (sum(record[name] for record in records) for name in ("to_do", "seconds"))
    return Result(records, terminal(table), f"{to_do} rows, about {duration_text(seconds)}")
