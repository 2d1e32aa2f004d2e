"""The commands `lens` and `lenses`: what a model looks like inside, and by which lenses."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval.commands.flags import Models, Natural, Out, Plugins, Positive, Shard, Words, listed
from eval.commands.result import Result, command
from eval.messages import RequestError
from eval.rows.plugins import run_plugins

ASKED = {"lens", "prompts", "prompt_kind", "length"}
"""Places that all figures of one look share."""

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

    Everything is checked first. Where a lens has its document already, that is shown.

    Args:
        models: model directories, or runs (RUN, RUN@STEP, RUN@best), remnant:NAME or hf:NAME
        out: results directory, for `python -m eval report`
        lens: lenses to use, listed by `python -m eval lenses`; all: those that can look at the
            model
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
        corpus: source of the stories, and of the text that lenses are fitted on: a file, a
            directory, hub:NAME or toy; default: the data that the models were trained on
        tokens: tokens of text that lenses are fitted on
        seed: seed of what lenses draw at random
        device: cpu, cuda, or auto: a GPU if there is one
        text: your own texts, instead of stories
        count: number of stories; default: 4
        length: tokens of each story that are read; default: 64
        words: tokens to follow; each must be one token, with the space before it: ' happy'
        shard: this process is the I-th of N that share the work, each with a rows file of its own
    """
    from eval.drawing.tables import terminal
    from eval.lenses.lens import ALL, FOLDER, Request, parse_lenses, word_tokens
    from eval.lenses.task import LensTask
    from eval.lenses.trace import gather
    from eval.models.checkpoint import open_models
    from eval.models.corpora import choose_corpus
    from eval.rows.tasks import open_results, run_tasks
    from eval.views.page.numbers import lens_overview

    run_plugins(plugin)
    names, texts, followed = listed(lens), listed(text or ()), tuple(listed(words))
    lenses = parse_lenses(names)
    if texts and (count or length):
        raise RequestError("--count and --length are of stories; leave them out with --text")
    checkpoints = open_models(models, device)
    corpus = choose_corpus(checkpoints, corpus)
    looks = []
    for checkpoint in checkpoints:
        word_tokens(checkpoint, followed)
        prompts = tuple(_prompts(checkpoint, texts, corpus, count or 4, length))
        gather(checkpoint, prompts)
        request = Request(prompts, followed, corpus, tokens=tokens, seed=seed)
        looks += [LensTask(entry, checkpoint, request, ALL not in names) for entry in lenses]
    with open_results(out, shard=shard) as results:
        run_tasks(looks, results, "looking")
        documents = [document for look in looks if (document := look.read(results))]
        by_look: dict[str, list[Row]] = {document["key"]: [] for document in documents}
        for row in results.rows():
            by_look.get(row.get("look", ""), []).append(row)
    rows = [row for of_look in by_look.values() for row in of_look]
    if len(documents) == 1:
        shown = _shown(documents[0], rows)
    else:
        shown = terminal(lens_overview(rows)) if rows else ""
    notes = ""
    if out:
        documents_in = f"documents: {results.directory / FOLDER}"
        page = shlex.join(["python", "-m", "eval", "report", out, "--out", "page.html"])
        notes = f"{results.note}, {documents_in}\nnext: {page}"
    return Result(rows, shown, notes, documents)


def _shown(document: dict[str, Any], rows: "list[Row]") -> str:
    """The figures of one look, those by layer in columns, then the tables that the lens made."""
    from eval.analysis.frame import coordinates
    from eval.drawing.markup import visible
    from eval.drawing.tables import Table, across, interval_text, terminal, text

    model = document["checkpoint"]
    parts: list[Table | str] = [
        f"{document['lens']}: {document['about']} ({model['name']}, step {model['step']})"
    ]
    layered, single = [], []
    for row in rows:
        where = {n: v for n, v in coordinates(row).items() if n not in ASKED}
        layer = where.pop("layer", None)
        named = [v if isinstance(v, str) else f"{n} {text(v)}" for n, v in where.items()]
        name = ", ".join([row["figure"], *named])
        if layer is not None:
            layered.append({"by layer": name, "layer": layer, "value": row["value"]})
        else:
            figure = interval_text(row["value"], row.get("low"), row.get("high"))
            single.append([name, figure, text(row.get("n"))])
    if layered:
        shown = across(layered, ["by layer"], "layer", [("value", "value", False)])
        parts.append(shown)
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
        return text_prompts(texts, checkpoint.tokenizer, checkpoint.config.context)
    context = checkpoint.config.context
    length = length or min(64, context)
    checkpoint.check_length(length)
    return drawn_prompts("story", held_out_text(checkpoint, corpus), count, length)
