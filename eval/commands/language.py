"""The commands `loss` and `generate`: how well models predict text, and what they write."""

from typing import Annotated

from eval import RequestError
from eval.cli import Device, Flag, Positive, Source, listed
from eval.commands import Model, Models, Result, command

FIGURES = [
    ("tokens", "tokens", False),
    ("nats_per_token", "nats/token", False),
    ("bits_per_byte", "bits/byte", False),
    ("perplexity", "perplexity", False),
    ("tokens_per_second", "tokens/s", False),
]
"""Columns of the table of losses."""


@command()
def loss(
    models: Models,
    corpus: Source = "toy",
    text: str | list[str] | None = None,
    stories: Positive | None = None,
    batch_size: Positive | None = None,
    out: Annotated[str | None, Flag(metavar="DIR")] = None,
    device: Device = "auto",
) -> Result:
    """Measures the loss on held-out stories: nats/token, bits/byte, perplexity, tokens/s.

    What is in --out is not measured anew.

    Args:
        models: model directories
        corpus: held-out stories: of toy (the embedded generator, default), hub:NAME, a directory
            with valid.*, or packed data; of a .txt, .jsonl or .parquet file, the share that
            packing sets aside
        text: these texts, whole, in the place of a corpus
        stories: only the first so many stories
        batch_size: windows sent through the model together; default: as many as the device's
            memory bears
        out: results directory, for `python -m eval compare`
        device: where to compute; auto (default) takes a GPU that is in reach
    """
    from eval.language import Measurement
    from eval.models import open_models
    from eval.statistics import bits_of_text
    from eval.tables import lay_out, terminal
    from eval.tasks import answered

    texts = None if text is None else tuple(listed(text))
    tasks = [
        Measurement(checkpoint, corpus, stories, batch_size, texts)
        for checkpoint in open_models(models, device)
    ]
    every, note = answered(tasks, out, "predicting")
    known = {row["key"]: row for row in every}
    rows = [known[key] for task in tasks for key in task.keys]
    records = []
    for row in rows:
        interval = bits_of_text([row["parts"]], [0])
        low, high = interval[1:] if interval else (None, None)
        limits = {"bits_per_byte_low": low, "bits_per_byte_high": high}
        about = {"model": row["checkpoint"]["name"], "step": row["checkpoint"]["step"]}
        records.append(about | {name: row[name] for name, *_ in FIGURES} | limits)
    table = lay_out(records, FIGURES)
    return Result(rows, terminal(table), note)


@command()
def generate(
    model: Model,
    prompt: str = "Once upon a time",
    count: Positive = 1,
    max_new_tokens: Positive = 200,
    temperature: float = 0.8,
    top_k: Positive | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: Device = "auto",
) -> Result:
    """Continues prompts with a model.

    Args:
        model: a model directory
        prompt: the beginning
        count: how many continuations
        max_new_tokens: of each
        temperature: 0: the likeliest token
        top_k: draw among the k likeliest tokens
        top_p: draw among the likeliest with probability p
        seed: of the draws
        device: where to compute; auto (default) takes a GPU that is in reach
    """
    import torch

    import arch
    from eval.models import open_models
    from tokenizer import END_OF_TEXT

    (checkpoint,) = open_models([model], device)
    tokenizer, place = checkpoint.tokenizer, checkpoint.model.embedding.weight.device
    tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
    context = checkpoint.config.context
    if len(tokens) > context:
        raise RequestError(
            f"--prompt has {len(tokens)} tokens, the model's context is {context}; shorten it"
        )
    stop = tokenizer.token_to_id(END_OF_TEXT)
    stories = arch.generate(
        checkpoint.model,
        torch.tensor([tokens] * count, device=place),
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        stop=stop,
        generator=torch.Generator(place).manual_seed(seed),
    )
    written = [_until(row.tolist(), len(tokens), stop) for row in stories]
    texts = [tokenizer.decode(story, skip_special_tokens=False) for story in written]
    rows = [{"prompt": prompt, "text": text} for text in texts]
    return Result(rows, "\n\n---\n\n".join(texts))


def _until(tokens: list[int], start: int, stop: int | None) -> list[int]:
    """The tokens before the first stop that the model said."""
    said = tokens[start:]
    return tokens[: start + said.index(stop)] if stop in said else tokens
