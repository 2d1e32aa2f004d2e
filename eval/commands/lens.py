"""The commands `lens` and `lenses`: what a model looks like inside, and by which lenses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval.commands.flags import Models, Natural, Out, Plugins, Positive, Shard, Words, listed
from eval.commands.result import Result, command, next_step
from eval.messages import RequestError, say_once
from eval.rows.plugins import run_plugins

COMMON = {"lens", "prompts", "prompt_kind", "length", "texts"}
"""Coordinates that all figures of one document have in common."""

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint
    from eval.models.text import Prompt
    from eval.rows.store import Row


@command
def lens(
    models: Models,
    out: Out = None,
    lens: str | Sequence[str] = "all",
    plugin: Plugins = (),
    corpus: str | None = None,
    tokens: Positive = 8192,
    seed: Natural = 0,
    device: str = "auto",
    text: Words = None,
    count: Positive | None = None,
    length: Positive | None = None,
    words: str | Sequence[str] = (),
    shard: Shard = None,
) -> Result:
    """Looks inside a model through lenses (stream, logits by layer, mixers): documents and rows.

    Texts, words and models are checked first; whether a lens can look at a model is seen in its
    turn. If a lens has its document already, that document is shown.

    Args:
        out: results directory, for `python -m eval report`
        lens: lenses to use, listed by `python -m eval lenses`; all: those that can look at the
            model
        corpus: source of the stories, and of the text that lenses are fitted on: a file, a
            directory, hub:NAME or toy; default: the data that the models were trained on
        tokens: tokens of text that lenses are fitted on
        seed: seed of what lenses draw at random
        text: your own texts, instead of stories
        count: number of stories; default: 4
        length: tokens of each story that are read; default: 64
        words: tokens to follow; each must be one token, with the space before it: ' happy'
    """
    from eval.analysis.coordinates import looked_at
    from eval.drawing.tables import terminal
    from eval.lenses.documents import FOLDER
    from eval.lenses.lens import ALL, Request, parse_lenses, word_tokens
    from eval.lenses.task import LensTask
    from eval.lenses.trace import gather
    from eval.models.checkpoint import open_models
    from eval.models.corpora import choose_corpus
    from eval.rows.tasks import open_results, run_tasks
    from eval.views.page.numbers import lens_overview

    run_plugins(plugin)
    names, followed, given = listed(lens), tuple(listed(words)), listed(text or ())
    texts = list(dict.fromkeys(given))  # one given twice is no second sample
    order = tuple(map(texts.index, given)) if len(texts) < len(given) else ()
    lenses = parse_lenses(names)
    if texts and (count or length):
        raise RequestError("--count and --length are of stories; leave them out with --text")
    checkpoints = open_models(models, device)
    corpus = choose_corpus(checkpoints, corpus)
    tasks = []
    for checkpoint in checkpoints:
        word_tokens(checkpoint, followed)
        prompts = tuple(_prompts(checkpoint, texts, corpus, count or 4, length))
        gather(checkpoint, prompts)
        request = Request(prompts, followed, corpus, tokens=tokens, seed=seed, order=order)
        tasks += [LensTask(entry, checkpoint, request, ALL not in names) for entry in lenses]
    with open_results(out, shard=shard) as results:
        run_tasks(tasks, results, "looking")
        documents = [document for task in tasks if (document := task.read(results))]
        by_document: dict[str, list[Row]] = {document["key"]: [] for document in documents}
        looks = [row for row in results.rows() if row.get("look")]
        for row in looks:
            by_document.get(row["look"], []).append(row)
    rows = [row for of_document in by_document.values() for row in of_document]
    last = {looked_at(row): row["look"] for row in looks}
    if later := {row["lens"] for row in rows if row["look"] != last[looked_at(row)]}:
        say_once(
            f"--out {out}: pages and summaries show a later look of {', '.join(sorted(later))}; "
            "give another directory for this one"
        )
    if len(documents) == 1:
        shown = _shown(documents[0], rows)
    else:
        shown = terminal(lens_overview(rows)) if rows else ""
    folder = f", documents: {results.directory / FOLDER}"
    return Result(rows, shown, next_step(results, out, folder), documents)


def _shown(document: dict[str, Any], rows: "list[Row]") -> str:
    """The figures of a document, those by layer in columns, then the tables that the lens made."""
    from eval.analysis.frame import coordinates
    from eval.drawing.markup import visible
    from eval.drawing.tables import Table, across, interval_text, terminal, text

    model = document["checkpoint"]
    parts: list[Table | str] = [
        f"{document['lens']}: {document['about']} ({model['name']}, step {model['step']})"
    ]
    layered, single = [], []
    for row in rows:
        where = {n: v for n, v in coordinates(row).items() if n not in COMMON}
        layer = where.pop("layer", None)
        named = [f"{n} " * (not isinstance(v, str)) + text(v) for n, v in where.items()]
        name = ", ".join([row["figure"], *named])
        if layer is not None:
            layered.append({"by layer": name, "layer": layer, "value": row["value"]})
        else:
            figure = interval_text(row["value"], row.get("low"), row.get("high"))
            single.append([name, figure, text(row.get("n"))])
    if layered:
        parts.append(across(layered, ["by layer"], "layer", [("value", "value", False)]))
    if single:
        parts.append(Table(["figure", "value", "n"], single))
    for made in document["texts"]:
        lines = [[" ".join(map(visible, c)) if isinstance(c, list) else c for c in line]
                 for line in made["lines"]]  # fmt: skip
        parts.append(Table(made["columns"], lines, title=made["title"]))
    return terminal(*parts)


def _prompts(
    checkpoint: "Checkpoint", texts: list[str], corpus: str, count: int, length: int | None
) -> "list[Prompt]":
    from eval.models.text import drawn_prompts, held_out_text, text_prompts

    if texts:
        return text_prompts(texts, checkpoint)
    context = checkpoint.config.context
    length = length or min(64, context)
    checkpoint.check_length(length)
    return drawn_prompts("story", held_out_text(checkpoint, corpus), count, length)
