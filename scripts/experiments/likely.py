"""How often a token that `recover` calls likely is wrong.

    python -m scripts.experiments.likely ask MODEL CORPUS OUT.jsonl [--other MODEL] [CASE ...]
    python -m scripts.experiments.likely table OUT.jsonl

Passages of held-out text are run through a model, what comes out is damaged, and `recover` is asked
for the tokens with the site given. What is in OUT is not asked again. Fixed before the first row:

* Related cases hold the passages' tokens: noise, a coarse format, other weights of the same model,
  a neighbouring layer's outputs, positions in another order, rows that were shrunk, normed, clipped
  or mixed, channels set to zero. Of their tokens at a probability of 0.99 or more at most 1 % may
  be wrong, of at least 2,000 tokens, and none that is certain.
* Unrelated cases hold no token where the model would put it: channels rotated or in another order,
  normal draws of the outputs' mean and covariance, outputs of other weights. None of their tokens
  may be likely, and none certain.
"""

import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy
from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

from arch import LanguageModel
from eval.models.checkpoint import Checkpoint, open_model
from eval.models.text import held_out_text
from eval.sites.circuit import Circuit
from scripts.experiments.shared import add_noise, add_rows, read_rows, rms

PROMPTS, LENGTH = 10, 20
NOISE = 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0
SITES = "block.2", "mixer.1"
STEPS, BATCH, RATE = 50, 8, 1e-4
UNRELATED = "rotated", "permuted channels", "normal", "other weights", "untrained"


def seeded(seed: int) -> Generator:
    """A generator of random numbers from their beginning."""
    return Generator().manual_seed(seed)


def quantise(values: Tensor, levels: int = 7) -> Tensor:
    """To integers of 2 levels + 1 values with a scale for each 32 channels, and back."""
    groups = values.unflatten(-1, (-1, min(32, values.shape[-1])))
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / levels
    return ((groups / scale).round() * scale).flatten(-2)


def clip(outputs: Tensor, quantile: float = 0.9) -> Tensor:
    """Numbers held within the size that a fraction of them has at most."""
    limit = float(outputs.abs().quantile(quantile))
    return outputs.clamp(-limit, limit)


def drop_channels(outputs: Tensor, fraction: float = 0.3) -> Tensor:
    """A fraction of all channels set to zero."""
    drawn = torch.rand(outputs.shape[-1], generator=seeded(5))
    return outputs * (drawn >= fraction)


def mix(outputs: Tensor, dim: int, fraction: float = 0.3) -> Tensor:
    """With a fraction of the prompt (0) or position (1) before; before the first is the last."""
    return (1 - fraction) * outputs + fraction * outputs.roll(1, dim)


def rotate(outputs: Tensor, generator: Generator) -> Tensor:
    """Turned by a random rotation of all channels."""
    width = outputs.shape[-1]
    drawn = torch.randn(width, width, generator=generator)
    return outputs @ torch.linalg.qr(drawn).Q


def shuffle(outputs: Tensor, generator: Generator, dim: int = -1) -> Tensor:
    """Channels, or what another axis holds, in another order."""
    order = torch.randperm(outputs.shape[dim], generator=generator)
    return outputs.index_select(dim, order)


def draw_like(outputs: Tensor) -> Tensor:
    """Normal draws of the outputs' mean and covariance over all positions."""
    rows = outputs.flatten(0, 1).double()
    mean = rows.mean(dim=0)
    values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    drawn = torch.randn(rows.shape, generator=seeded(3)).double()
    drawn = (drawn * values.clamp(min=0).sqrt()) @ vectors.T + mean
    return drawn.to(outputs).view_as(outputs)


def quantise_weights(checkpoint: Checkpoint) -> LanguageModel:
    """A copy whose matrices went through 4 bits with a scale for each group of 32."""
    model = copy.deepcopy(checkpoint.model)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = quantise(parameter.data)
    return model


def fine_tune(checkpoint: Checkpoint, corpus: str) -> LanguageModel:
    """A copy trained for `STEPS` steps of AdamW on background text."""
    model = copy.deepcopy(checkpoint.model).train().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    text = held_out_text(checkpoint, corpus).background
    for step in range(STEPS):
        rows = text.roll(-step * BATCH, 0)[:BATCH]
        loss = cross_entropy(model(rows)[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def make_cases(
    checkpoint: Checkpoint, corpus: str, tokens: Tensor, site: str, other: Checkpoint | None
) -> dict[str, Callable[[], Tensor]]:
    """What is captured, by case."""
    part, _, layer = site.partition(".")
    depth = int(layer)

    @cache
    def run(model: LanguageModel, layer: int = depth) -> Tensor:
        return Circuit(model, layer, part).of_tokens(tokens)

    model = checkpoint.model
    own = partial(run, model)
    lowered = torch.float8_e4m3fn, torch.float8_e5m2
    cases: dict[str, Callable[[], Tensor]] = {
        **{f"noise {size:.0%}": partial(lambda size: add_noise(own(), size, seeded(0)), size)
           for size in NOISE},
        "noise 1%, bf16": lambda: add_noise(own(), 0.01, seeded(0)).bfloat16(),
        "int4 groups of 32": lambda: quantise(own()),
        **{str(kind).removeprefix("torch."): partial(lambda kind: own().to(kind).float(), kind)
           for kind in lowered},
        "int4 weights": lambda: run(quantise_weights(checkpoint)),
        "fine-tuned": lambda: run(fine_tune(checkpoint, corpus)),
        "layer below": lambda: run(model, depth - 1),
        "layer above": lambda: run(model, depth + 1),
        "positions shuffled": lambda: shuffle(own(), seeded(2), 1),
        "shrunk to a tenth": lambda: own() / 10,
        "rows normed": lambda: own() / rms(own()),
        "clipped": lambda: clip(own()),
        "channels dropped": lambda: drop_channels(own()),
        "positions mixed": lambda: mix(own(), 1),
        "prompts mixed": lambda: mix(own(), 0),
        "rotated": lambda: rotate(own(), seeded(1)),
        "permuted channels": lambda: shuffle(own(), seeded(2)),
        "normal": lambda: draw_like(own()),
        "untrained": lambda: run(untrained(model)),
    }  # fmt: skip
    if other:
        cases["other weights"] = lambda: run(other.model)
    return cases


def untrained(model: LanguageModel) -> LanguageModel:
    """A model of the same kind with fresh weights."""
    torch.manual_seed(4)
    return LanguageModel(model.config).eval().requires_grad_(False)


def ask(
    checkpoint: Checkpoint, corpus: str, tokens: Tensor, site: str, case: str, outputs: Tensor
) -> dict[str, Any]:
    """One row: the grade and probability of each token, and whether it is right."""
    from eval import recover

    part, _, layer = site.partition(".")
    found = recover(checkpoint, outputs, layer=int(layer), part=part, corpus=corpus)
    true = shuffle(tokens, seeded(2), 1) if case == "positions shuffled" else tokens
    return {
        "case": case, "site": site,
        "right": (found.tokens == true).int().tolist(),
        "certain": [[int(proof is not None) for proof in of] for of in found.certificates],
        "p": [[None if p is None else float(f"{p:.4g}") for p in of]
              for of in found.probabilities],
    }  # fmt: skip


def ask_all(
    model: Positional[str], corpus: Positional[str], out: Positional[Path],
    case: Positional[tuple[str, ...]] = (), name: str = "model", other: str | None = None,
    sites: tuple[str, ...] = SITES,
) -> None:  # fmt: skip
    """Asks the cases that are not in the file yet.

    Args:
        model: that captured.
        corpus: whose held-out stories are recovered.
        out: where rows are added.
        case: those asked alone.
        name: of the model, in rows.
        other: a model of the same width and tokenizer.
        sites: part and layer of each.
    """
    checkpoint, second = open_model(model), open_model(other) if other else None
    tokens = held_out_text(checkpoint, corpus).windows("evaluation", 2 * PROMPTS, LENGTH)
    tokens = tokens[PROMPTS:]  # by those before, rules were found
    known = {(row["model"], row["site"], row["case"]) for row in read_rows(out)}
    for site in sites:
        for kind, make in make_cases(checkpoint, corpus, tokens, site, second).items():
            key = name, site, kind
            if key in known or (case and kind not in case):
                continue
            row = ask(checkpoint, corpus, tokens, site, kind, make())
            add_rows(out, {"model": name, **row})
            print(*key, summarise([row]), flush=True)


def summarise(rows: list[dict[str, Any]], least: float = 0.99) -> dict[str, int]:
    """Counts of rows: tokens, right ones, certain ones, likely ones, and wrong ones of these."""
    names = "tokens", "right", "certain", "false certain", "likely", "false likely"
    counts: dict[str, int] = dict.fromkeys(names, 0)
    for row in rows:
        for right, certain, chances in zip(row["right"], row["certain"], row["p"], strict=True):
            for good, sure, p in zip(right, certain, chances, strict=True):
                likely = not sure and p is not None and p >= least
                counts["tokens"] += 1
                counts["right"] += good
                counts["certain"] += sure
                counts["false certain"] += sure and not good
                counts["likely"] += likely
                counts["false likely"] += likely and not good
    return counts


def print_table(out: Positional[Path]) -> None:
    """Prints a line for each case, the related ones first, and the two criteria."""
    rows = read_rows(out)
    names = dict.fromkeys(row["case"] for row in rows)
    names = sorted(names, key=lambda name: name in UNRELATED)
    print("| case | tokens | right | certain | likely | likely and wrong | at most, % |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    groups = {name: [row for row in rows if row["case"] == name] for name in names}
    groups["**all related**"] = [row for row in rows if row["case"] not in UNRELATED]
    groups["**all unrelated**"] = [row for row in rows if row["case"] in UNRELATED]
    for name, group in ((name, group) for name, group in groups.items() if group):
        c = summarise(group)
        counted = c["tokens"] if name in (*UNRELATED, "**all unrelated**") else c["likely"]
        most = binomtest(c["false likely"], counted).proportion_ci().high if counted else 1.0
        print(f"| {name} | {c['tokens']} | {c['right']} | {c['certain']} | {c['likely']} | "
              f"{c['false likely']} | {100 * most:.2g} |")  # fmt: skip
        assert not c["false certain"], name


if __name__ == "__main__":
    subcommand_cli_from_dict({"ask": ask_all, "table": print_table})
