"""E11: what a defence of a captured stream costs, and what it leaves to an attacker.

    python -m scripts.experiments.defences ask NAME MODEL CORPUS OUT.jsonl
    python -m scripts.experiments.defences draw ROWS.parquet FIGURE.svg

A defence changes the stream `(T, D)` between two blocks; its undoing is what a receiver with the
secret reads. docs/results/experiments/e11.yaml says what is asked, and docs/results/defences.md
what was found.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import torch
from torch import Generator, Tensor
from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

from arch import LanguageModel
from eval.drawing.figures import write_chart
from eval.drawing.plots import LIGHT, lines, open_altair
from eval.models.checkpoint import Checkpoint, open_model
from eval.models.text import held_out_text
from scripts.experiments.likely import quantise, rotate, shuffle
from scripts.experiments.shared import add_noise, add_rows, read_rows, read_stored, rms

LAYER, PASSAGES, LENGTH = 2, 10, 24
NOISE, BITS, DROPPED = (0.1, 0.3, 1.0, 3.0), (8, 4, 3, 2), (0.25, 0.5, 0.75)
ROUNDING = 1e-5
"""Of a row's length: what two ways of computing the same outputs may differ by."""
MIXED = 1e-3
"""The same where a basis of mixed rows is taken, which rounding moves further."""
MODERATE = 0.1, 50
"""A KL in nats, at most, and a percentage of tokens named, which a moderate defence stays below."""
NAMED = {"flat": "flat mixer", "llama": "Llama"}
COST = "cost, KL in nats"
BACKGROUND = 16
"""Passages that the shape of the noise is taken from."""


class Defended(NamedTuple):
    """What the attacker sees, what the receiver reads, and which positions are shown."""

    seen: Tensor
    received: Tensor
    shown: list[int]


def add_shaped_noise(stream: Tensor, strength: float, generator: Generator, root: Tensor) -> Tensor:
    """Normal noise of the power of `add_noise`, with covariance root rootᵀ, of trace D."""
    drawn = torch.randn(stream.shape, generator=generator)
    return stream + strength * rms(stream) * (drawn @ root.T)


def encode(stream: Tensor, bits: float) -> Tensor:
    """Codes of so many bits, one scale for each 32 channels, as the numbers that they stand for."""
    return quantise(stream, 2 ** (int(bits) - 1) - 1)


def mix(stream: Tensor, generator: Generator) -> Tensor:
    """The rows mixed by a random invertible matrix (2603.05035)."""
    T = len(stream)
    return torch.randn(T, T, generator=generator, dtype=torch.float64).to(stream) @ stream


def drop(stream: Tensor, fraction: float, generator: Generator) -> Defended:
    """A fraction of the positions at zero; the last one stays."""
    T = len(stream)
    gone = torch.randperm(T - 1, generator=generator)[: round(fraction * T)]
    seen = stream.clone()
    seen[gone] = 0.0
    return Defended(seen, seen, sorted({*range(T)} - set(gone.tolist())))


def noise_shape(model: LanguageModel, passages: Tensor) -> Tensor:
    """A root `(D, D)` of the covariance of shaped noise, of trace D.

    The covariance is the inverse of the mean Fisher matrix of a position's next token with respect
    to its stream, a tenth of its mean eigenvalue added.
    """
    generator = torch.Generator().manual_seed(0)
    fisher = torch.zeros(model.config.d_model, model.config.d_model)
    streams = model.hidden(model.embed(passages), LAYER).detach()
    for stream in streams:
        own = stream.requires_grad_()
        logits = continue_from(model, own[None])[0]
        probabilities = logits.softmax(-1).detach()
        for t in range(len(own)):
            picked = torch.multinomial(probabilities[t], 8, replacement=True, generator=generator)
            for token in picked:
                score = logits[t].log_softmax(-1)[token]
                (gradient,) = torch.autograd.grad(score, own, retain_graph=True)
                fisher += torch.outer(gradient[t], gradient[t])
    values, vectors = torch.linalg.eigh(fisher)
    inverse = 1 / (values.clamp(min=0) + values.mean() / 10)
    inverse = inverse * len(inverse) / inverse.sum()
    return vectors * inverse.sqrt()


def continue_from(model: LanguageModel, stream: Tensor) -> Tensor:
    """Logits `(B, T, V)` from the stream after block `LAYER`."""
    for block in list(model.blocks)[LAYER:]:
        stream = block(stream)
    return model.logits(stream)


@torch.no_grad()
def all_candidates(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The outputs of every token at each position behind the true ones before it, `(T, V, D)`."""
    every = model.embed(torch.arange(model.config.vocab_size)[:, None])
    outputs, state = [], None
    for t in range(len(tokens)):
        if state is None:
            outputs.append(model.hidden(every, LAYER)[:, 0])
        else:
            outputs.append(model.step(every, state)[:, 0])
        _, state = model.prefix(model.embed(tokens[None, t : t + 1]), state, layer=LAYER)
    return torch.stack(outputs)


def log_likelihoods(
    kind: str, strength: float, seen: Tensor, candidates: Tensor, stream: Tensor, root: Tensor
) -> Tensor:
    """How likely each candidate `(T, V, D)` makes what is seen: `(T, V)`, in nats.

    A secret leaves what it cannot change; of that a candidate may miss what rounding makes.
    """
    target = seen[:, None]
    if kind in ("noise", "shaped"):
        deviation, error = strength * rms(candidates), target - candidates
        error = error @ torch.linalg.inv(root).T if kind == "shaped" else error
        lost = error.shape[-1] * deviation[..., 0].log()
        return -(error / deviation).square().sum(-1) / 2 - lost
    if kind == "codes":
        error = (encode(candidates, strength) - target).abs() > ROUNDING * rms(target)
        return -10.0 * error.sum(-1)
    if kind == "permute":
        error = candidates.sort(-1).values - target.sort(-1).values
    elif kind == "rotate":  # lengths, and inner products with the rows before
        before = torch.ones(len(seen), len(seen)).tril(-1)[:, None]
        error = (candidates @ stream.T - (seen @ seen.T)[:, None]) * before / stream.norm(dim=-1)
        error = torch.cat(
            [error, candidates.norm(dim=-1, keepdim=True) - target.norm(dim=-1)[..., None]], -1
        )
    else:  # mixed rows span what the rows span
        basis = torch.linalg.qr(seen.double().T).Q
        error = candidates.double()
        error = (error - error @ basis @ basis.T).float()
    missing = error.norm(dim=-1) / candidates.norm(dim=-1)
    return -(missing / (MIXED if kind == "mix" else ROUNDING)).square() / 2


def ask(
    name: Positional[str], model_name: Positional[str], corpus: Positional[str],
    file: Positional[Path],
) -> None:  # fmt: skip
    """Asks every passage, defence and strength that is not in the file yet."""
    checkpoint = open_model(model_name)
    model, text = checkpoint.model, held_out_text(checkpoint, corpus)
    model.requires_grad_(False)
    root = noise_shape(model, text.background[:BACKGROUND, :LENGTH])
    known = {row["key"] for row in read_rows(file)}
    for i, tokens in enumerate(text.windows("evaluation", PASSAGES, LENGTH)):
        stream = model.hidden(model.embed(tokens[None]), LAYER)[0]
        clean, candidates = continue_from(model, stream[None])[0], all_candidates(model, tokens)
        for kind, strength in KINDS:
            key = f"{name}.{i}.{kind}.{strength:g}"
            if key in known:
                continue
            defended = defend(kind, strength, stream, root, Generator().manual_seed(i))
            row = {"key": key, "model": name, "passage": i, "defence": kind, "strength": strength}
            row |= {"kl": divergence(clean, continue_from(model, defended.received[None])[0])}
            if kind != "drop":
                row |= attack_exactly(
                    kind, strength, defended.seen, candidates, stream, root, tokens
                )
            row |= attack_by_recover(checkpoint, corpus, defended, tokens)
            add_rows(file, row)
        print(name, i, flush=True)


def defend(
    kind: str, strength: float, stream: Tensor, root: Tensor, generator: Generator
) -> Defended:
    """A stream `(T, D)` behind one defence."""
    if kind == "drop":
        return drop(stream, strength, generator)
    whole = list(range(len(stream)))
    if kind in SECRETS:  # which the receiver undoes
        return Defended(SECRETS[kind](stream, generator), stream, whole)
    if kind == "codes":
        seen = encode(stream, strength)
    elif kind == "noise":
        seen = add_noise(stream, strength, generator)
    else:
        seen = add_shaped_noise(stream, strength, generator, root)
    return Defended(seen, seen, whole)


def divergence(clean: Tensor, other: Tensor) -> float:
    """KL of next-token distributions `(T, V)` of logits, nats, mean over positions."""
    p, q = clean.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def attack_exactly(
    kind: str,
    strength: float,
    seen: Tensor,
    candidates: Tensor,
    stream: Tensor,
    root: Tensor,
    tokens: Tensor,
) -> dict[str, Any]:
    """How many tokens the likeliest candidate names, and the bits that are left about one."""
    likely = log_likelihoods(kind, strength, seen, candidates, stream, root).double()
    posterior = likely.log_softmax(-1)
    entropy = -(posterior.exp() * posterior).nan_to_num(0.0).sum(-1) / math.log(2)
    right = likely.argmax(-1) == tokens
    return {"exact": int(right.sum()), "bits": math.log2(likely.shape[-1]) - float(entropy.mean())}


def attack_by_recover(
    checkpoint: Checkpoint, corpus: str, defended: Defended, tokens: Tensor
) -> dict[str, Any]:
    """What `recover` says of the tensor, its site given."""
    from eval import recover

    whole = len(defended.shown) == len(tokens)
    shown = None if whole else defended.shown
    found = recover(checkpoint, defended.seen, layer=LAYER, shown=shown, corpus=corpus)
    right = found.tokens[0] == tokens
    certain = torch.tensor([proof is not None for proof in found.certificates[0]])
    chances = torch.tensor([p or 0.0 for p in found.probabilities[0]])
    likely = ~certain & (chances >= 0.99)
    return {
        "tokens": len(tokens), "right": int(right.sum()),
        "certain": int(certain.sum()), "certain_wrong": int((certain & ~right).sum()),
        "likely": int(likely.sum()), "likely_wrong": int((likely & ~right).sum()),
    }  # fmt: skip


SECRETS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "permute": shuffle, "rotate": rotate, "mix": mix,
}  # fmt: skip
KINDS = [
    *(("noise", size) for size in NOISE),
    *(("shaped", size) for size in NOISE),
    *(("codes", bits) for bits in BITS),
    *(("drop", fraction) for fraction in DROPPED),
    *((kind, 0) for kind in SECRETS),
]


def average(rows: Any) -> Any:
    """Means over passages, a row for each model, defence and strength; tokens in per cent."""
    rows["of"] = rows.model.str.split("-s").str[0]
    for name in ("exact", "right"):
        rows[name] = 100 * rows[name] / rows.tokens
    wanted = ["kl", "exact", "bits", "right"]
    means = rows.groupby(["defence", "strength", "model", "of"])[wanted].mean().reset_index()
    means["named"] = means[["exact", "right"]].max(axis=1)
    return means


def draw(means: Any) -> Any:
    """Tokens named and bits left against what a defence costs, a panel for each kind of model.

    The shaded corner is where a defence would be moderate.
    """
    alt = open_altair()
    open_ones = means[~means.defence.isin(list(SECRETS))]
    open_ones = open_ones.replace({"defence": {"drop": "dropped", "shaped": "shaped noise"}})
    shown = open_ones.groupby(["of", "defence", "strength"])[["kl", "named", "bits"]].mean()
    shown = shown.reset_index().sort_values("kl").rename(columns={"kl": COST})
    scale, axis = {"type": "log", "domain": [1e-5, 10]}, {"values": [1e-4, 1e-2, 1]}
    corner = {COST: 1e-5, "end": MODERATE[0], "value": 0, "top": MODERATE[1]}
    shade = alt.Chart(alt.Data(values=[corner])).mark_rect(
        opacity=0.3, color=LIGHT["c5"], aria=False
    )
    x2, y2 = alt.X2("end:Q", title=""), alt.Y2("top:Q", title="")
    shade = shade.encode(x=f"{COST}:Q", x2=x2, y="value:Q", y2=y2)
    rows = []
    for value, title in {"named": "tokens found, per cent", "bits": "bits left, of 12"}.items():
        points = shown.assign(value=shown[value], tip="").dropna(subset="value")
        panels = []
        for kind, part in points.groupby("of"):
            records = part.to_dict("records")
            drawn = lines(
                records, COST, title, "defence", names=sorted({*points.defence}),
                scale=scale, axis=axis, size=(240, 150),
            )  # fmt: skip
            drawn = alt.layer(shade, drawn) if value == "named" else drawn
            panels.append(drawn.properties(title=NAMED[kind]))
        rows.append(alt.hconcat(*panels))
    return alt.vconcat(*rows)


def draw_stored(rows: Positional[Path], figure: Positional[Path]) -> None:
    """Draws the figure of stored rows."""
    write_chart(figure, draw(average(pandas.DataFrame(read_stored(rows)))))


if __name__ == "__main__":
    subcommand_cli_from_dict({"ask": ask, "draw": draw_stored})
