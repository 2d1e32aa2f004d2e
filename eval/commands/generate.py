"""Stories continued by a model."""

import argparse

import torch

from arch import generate
from eval.commands.options import add_models, open_models, positive
from eval.errors import RequestError
from tokenizer import END_OF_TEXT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    add_models(parser, several=False)
    parser.add_argument("--prompt", default="Once upon a time", help="the beginning")
    parser.add_argument("--count", type=positive, default=1, help="how many continuations")
    parser.add_argument("--max-new-tokens", type=positive, default=200)
    parser.add_argument("--temperature", type=float, default=0.8, help="0: the likeliest token")
    parser.add_argument("--top-k", type=positive, help="draw among the k likeliest tokens")
    parser.add_argument("--top-p", type=float, help="draw among the likeliest with probability p")
    parser.add_argument("--seed", type=int, default=0)


def run(options: argparse.Namespace) -> None:
    """Prints each continuation, a rule between them."""
    (checkpoint,) = open_models(options)
    tokenizer, device = checkpoint.tokenizer, checkpoint.model.embedding.weight.device
    prompt = tokenizer.encode(options.prompt, add_special_tokens=False).ids
    context = checkpoint.config.context
    if len(prompt) > context:
        raise RequestError(
            f"--prompt has {len(prompt)} tokens, the model's context is {context}; shorten it"
        )
    stop = tokenizer.token_to_id(END_OF_TEXT)
    stories = generate(
        checkpoint.model,
        torch.tensor([prompt] * options.count, device=device),
        options.max_new_tokens,
        options.temperature,
        options.top_k,
        options.top_p,
        stop=stop,
        generator=torch.Generator(device).manual_seed(options.seed),
    )
    texts = [_until(row.tolist(), len(prompt), stop) for row in stories]
    print("\n\n---\n\n".join(tokenizer.decode(text, skip_special_tokens=False) for text in texts))


def _until(tokens: list[int], start: int, stop: int | None) -> list[int]:
    """The tokens before the first stop that the model said."""
    said = tokens[start:]
    return tokens[: start + said.index(stop)] if stop in said else tokens
