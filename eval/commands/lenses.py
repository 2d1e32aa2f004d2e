"""The commands `lens` and `lenses`: what a model looks like inside, and by which lenses."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from eval.api import Models, Result, Rows, command, directory
from eval.cli import Device, Flag, Natural, Plugins, Source, listed, positive
from eval.errors import RequestError

if TYPE_CHECKING:
    from eval.checkpoints import Checkpoint
    from eval.lenses.questions import Look
    from eval.results import Results
    from eval.text import Prompt


@command(text="what is looked at")
def lens(
    models: Models,
    out: Rows = None,
    lens: Annotated[str | Sequence[str], Flag(metavar="NAME", several=True)] = "all",
    plugin: Plugins = None,
    corpus: Source = "toy",
    tokens: Annotated[int, Flag(positive, "N")] = 8192,
    seed: Natural = 0,
    device: Device = "auto",
    text: Annotated[str | Sequence[str] | None, Flag(metavar="T", several=True)] = None,
    count: Annotated[int | None, Flag(positive, "N")] = None,
    length: Annotated[int | None, Flag(positive, "L")] = None,
    words: Annotated[str | Sequence[str], Flag(metavar="W", several=True)] = (),
) -> Result:
    """What a model looks like inside: stream, logits by layer, tokens, mixers: documents and rows.

    Everything is checked first; what was looked at before is shown again.

    Args:
        models: model directories
        out: results directory
        lens: default: all that can look at the model; `python -m eval lenses` lists them
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
        corpus: where stories come from, and the text that lenses are fitted on: toy (default), a
            file, a directory, or hub:NAME
        tokens: of text to fit on
        seed: of what lenses draw
        device: where to compute; auto (default) takes a GPU that is in reach
        text: texts; default: stories
        count: of stories; default: 4
        length: tokens of a story's beginning; default: 64
        words: tokens that are followed, each one token, its space before it included: ' happy'
    """
    from eval.checkpoints import open_models
    from eval.lenses.documents import FOLDER, read_documents
    from eval.lenses.lens import ALL, Request, choose
    from eval.lenses.questions import Look
    from eval.lenses.trace import gather
    from eval.lenses.words import word_tokens
    from eval.plugins import run_plugins
    from eval.progress import track
    from eval.results import Results, read_rows

    run_plugins(plugin, [*listed(models), out])
    names, texts, followed = listed(lens), listed(text or ()), tuple(listed(words))
    lenses = choose(names)
    if texts and (count or length):
        raise RequestError("--count and --length are of stories; leave them out with --text")
    requests = []
    for checkpoint in open_models(models, device):
        word_tokens(checkpoint, followed)
        prompts = tuple(_prompts(checkpoint, texts, corpus, count or 4, length))
        gather(checkpoint, prompts)
        request = Request(prompts, followed, corpus, tokens=tokens, seed=seed)
        requests.append((checkpoint, request))
    with directory(out) as place:
        results = Results(place)
        looks = [Look(one, model, request) for model, request in requests for one in lenses]
        answers = _answers(looks, results, strict=ALL not in names)
        shown = list(track(answers, [1.0] * len(looks), "looking"))
        rows, documents = read_rows([place]), list(read_documents(place))
    notes = f"rows: {results.path}, documents: {results.directory / FOLDER}" if out else ""
    return Result(rows, "\n\n".join(part for part in shown if part), notes, documents)


@command()
def list_lenses(plugin: Plugins = None) -> Result:
    """All lenses with what each does; `--plugin FILE` adds those of a file of yours.

    Args:
        plugin: a Python file of yours that registers more (docs/extending.md); may be given several
            times. It is run as your own code, with all your rights: give only files that you trust
    """
    from eval.lenses.lens import lenses
    from eval.plugins import run_plugins

    run_plugins(plugin)
    known = lenses()
    width = max(map(len, known))
    rows = [{"name": one.name, "title": one.title, "about": one.about} for one in known.values()]
    return Result(rows, "\n".join(f"{name:{width}}  {one.about}" for name, one in known.items()))


def _answers(looks: "list[Look]", results: "Results", strict: bool) -> Iterator[str]:
    """Each look's tables; nothing where a lens cannot look, unless it was asked for by name."""
    from eval.lenses.tables import lens_tables

    for before, look in zip([None, *looks], looks, strict=False):
        if before and before.checkpoint is not look.checkpoint:
            before.checkpoint.kept.clear()
        try:
            document, rows = look.run(results.directory)
            results.append(rows)
            yield lens_tables(document, rows)
        except RequestError as refusal:
            if strict:
                raise
            print(f"{look.lens.name} left out: {refusal}", file=sys.stderr)
            yield ""


def _prompts(
    checkpoint: "Checkpoint", texts: list[str], corpus: str, count: int, length: int | None
) -> "list[Prompt]":
    from eval.text import held_out_text, story_prompts, text_prompts

    if texts:
        return text_prompts(texts, checkpoint.tokenizer)
    context = checkpoint.config.context
    length = length or min(64, context)
    if length > context:
        raise RequestError(
            f"--length {length}: the context of {checkpoint.path} is {context}; give a shorter one"
        )
    return story_prompts(held_out_text(checkpoint, corpus), count, length)
