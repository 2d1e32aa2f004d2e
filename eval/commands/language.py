"""The commands `loss` and `generate`: how well models predict text, and what they write."""

from eval.commands.flags import (
    Fraction,
    Model,
    Models,
    NotNegative,
    Out,
    Positive,
    Shard,
    Words,
    listed,
)
from eval.commands.result import Result, command
from eval.measures.loss import Measurement, Windows
from eval.messages import RequestError

FIGURES = [
    ("tokens", "tokens", False),
    ("nats_per_token", "nats/token", False),
    ("bits_per_byte", "bits/byte", False),
    ("perplexity", "perplexity", False),
    ("tokens_per_second", "tokens/s", False),
]
"""Columns of the table of losses."""


@command
def loss(
    models: Models,
    corpus: str | None = None,
    text: Words = None,
    stories: Positive | None = None,
    batch_size: Positive | None = None,
    windows: Windows = "joined",
    out: Out = None,
    device: str = "auto",
    shard: Shard = None,
    length: Positive | None = None,
) -> Result:
    """Measures the loss on held-out stories: nats/token, bits/byte, perplexity, tokens/s.

    Rows that are in --out already are not measured again.

    Args:
        text: texts to measure, instead of a corpus; a special token written in a text is read as
            that token (in a corpus as plain text)
        stories: read only the first N stories
        batch_size: windows that the model reads at once; default: as many as fit into memory
        windows: joined: stories follow each other, and their ends are predicted too, but not the
            first token of all, whose bytes count (for a short text take lm-eval); lm-eval: each
            story stands alone, after the token that begins a text (an end of text, or the BOS that
            files of transformers name), as in lm-evaluation-harness
        out: results directory, for `python -m eval compare`; what is in it is not measured again
        length: tokens of a window; default: the model's context, which may be more than memory
            holds. Rows of another length are not compared
    """
    from eval.analysis.summary import summarise_rows
    from eval.drawing.tables import lay_out, terminal
    from eval.models.checkpoint import open_models
    from eval.models.corpora import choose_corpus
    from eval.rows.tasks import answered

    if text is not None and (corpus or stories):
        flag = "--corpus" if corpus else "--stories"
        raise RequestError(f"{flag}: is of held-out stories, which --text replaces; give one")
    texts = None if text is None else tuple(listed(text))
    checkpoints = open_models(models, device)
    for checkpoint in checkpoints:
        checkpoint.check_length(length or 1)
    corpus = choose_corpus(checkpoints, corpus) if texts is None else ""
    tasks = [
        Measurement(checkpoint, corpus, stories, batch_size, texts, windows, length)
        for checkpoint in checkpoints
    ]
    rows, note = answered(tasks, out, "predicting", shard)
    records = summarise_rows(rows, "loss", every_seed=True) if rows else []
    table = lay_out(records, ["model", "step"], FIGURES)
    return Result(rows, terminal(table), note)


@command
def generate(
    model: Model,
    prompt: str = "Once upon a time",
    count: Positive = 1,
    max_new_tokens: Positive = 200,
    temperature: NotNegative = 0.8,
    top_k: Positive | None = None,
    top_p: Fraction | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Result:
    """Continues prompts with a model.

    Args:
        model: a model directory, or a run (RUN, RUN@STEP, RUN@best), remnant:NAME or hf:NAME
        prompt: the beginning of the text; a special token that is spelt in it is read as that token
        count: number of continuations
        max_new_tokens: most tokens of each continuation
        temperature: divides the logits; 0 takes the likeliest token
        top_k: draw among the k likeliest tokens
        top_p: draw among the likeliest tokens whose probabilities sum to p
        seed: seed of the draws
    """
    import torch

    import arch
    from eval.models.checkpoint import open_models
    from eval.models.pieces import encode_text

    (checkpoint,) = open_models([model], device)
    tokenizer, target = checkpoint.tokenizer, checkpoint.model.embedding.weight.device
    tokens = encode_text(tokenizer, prompt, "--prompt")
    if not tokens:
        raise RequestError(f"--prompt {prompt!r}: there is no token in it; give some text")
    context = checkpoint.config.context
    if len(tokens) >= context:
        raise RequestError(
            f"--prompt has {len(tokens)} tokens, the model's context is {context}: no room is left "
            "to go on; shorten it"
        )
    stories = arch.generate(
        checkpoint.model,
        torch.tensor([tokens] * count, device=target),
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        stop=checkpoint.stops,
        generator=torch.Generator(target).manual_seed(seed),
    )
    written = [_until(row.tolist(), len(tokens), checkpoint.stops) for row in stories]
    texts = [tokenizer.decode(story, skip_special_tokens=False) for story in written]
    rows = [{"prompt": prompt, "text": text} for text in texts]
    return Result(rows, "\n\n---\n\n".join(texts))


def _until(tokens: list[int], start: int, stops: list[int]) -> list[int]:
    """The tokens before the first stop that the model said."""
    said = enumerate(tokens[start:], start)
    return tokens[: next((t for t, token in said if token in stops), len(tokens))]
