"""E13: bits about two neighbouring tokens together, as docs/results/experiments/e13.yaml asks.

    python -m scripts.experiments.pairs ask NAME CORPUS OUT.jsonl
    python -m scripts.experiments.pairs table ROWS.parquet

NAME is `flat` or `llama`. A line for each passage; one that is there is not measured again.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor
from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

import arch.kernels.process  # noqa: F401 - before the first product
from eval.measures.bits.posterior import entropy, fit_under_noise, noise_evidence
from eval.models.checkpoint import open_model
from eval.models.memory import tokens_at_once
from eval.models.text import held_out_text
from eval.sites.circuit import Circuit
from scripts.experiments.shared import (
    add_rows,
    choose_passages,
    commonest,
    read_design,
    read_rows,
    read_stored,
    rounded,
)
from scripts.experiments.structured.table import Verdict

pd: Any = pandas
SAMPLES = 10_000
LEAST = 0.5
"""Bits with the other token known, below which a ratio is not judged."""
JUDGED_NOISE = "noise 0.25 rms"
MATTERS = 0.8
"""Of H1: from this ratio on, an unknown neighbour matters little."""
ENDS = "", " low", " high"


@torch.no_grad()
def run_pairs(
    circuit: Circuit, tokens: Tensor, position: int, candidates: Tensor, distances: list[int]
) -> Tensor:
    """Outputs with every pair of candidates in the position and the one after it.

    Args:
        tokens: `(T,)`.
        candidates: `(V,)`, for either.
        distances: of the outputs from the second position, S of them.

    Returns:
        `(V, V, S, width)`, the first candidate first.
    """
    after = tokens[position + 2 : position + 2 + max(distances)]
    rows = torch.cat([candidates[:, None], after.expand(len(candidates), -1)], dim=1)
    at_once = max(1, tokens_at_once(circuit.model) // rows.numel())
    found = []
    for firsts in candidates.split(at_once):
        before = tokens[:position].expand(len(firsts), -1)
        state = circuit.prefix(torch.cat([before, firsts[:, None]], dim=1))
        outputs = circuit.step(circuit.embed(rows.repeat(len(firsts), 1)), state)
        found.append(outputs[:, distances].unflatten(0, (len(firsts), -1)))
    return torch.cat(found)


def bits_of_pairs(fit: Tensor, first: int, second: int) -> dict[str, Tensor]:
    """Bits of `(draws, S, V, V)` log-likelihoods about both tokens and each, `(S,)`.

    Args:
        fit: of pairs, the first token first.
        first, second: which candidates they are.
    """

    def bits(log_likelihood: Tensor) -> Tensor:
        left = entropy(log_likelihood.log_softmax(dim=-1)).mean(dim=0)
        return math.log2(log_likelihood.shape[-1]) - left

    return {
        "both": bits(fit.flatten(-2)),
        "first, other known": bits(fit[..., second]),
        "second, other known": bits(fit[..., first, :]),
        "first, other unknown": bits(fit.logsumexp(dim=-1)),
        "second, other unknown": bits(fit.logsumexp(dim=-2)),
    }


def measure_pair(
    circuit: Circuit, tokens: Tensor, position: int, candidates: Tensor, design: dict[str, Any],
    seed: int,
) -> dict[str, dict[str, list[float]]]:  # fmt: skip
    """The bits of a passage by the size of the noise, each at the distances."""
    outputs = run_pairs(circuit, tokens, position, candidates, design["distances"])
    first, second = (int((candidates == t).nonzero()) for t in tokens[position : position + 2])
    truth, count = outputs[first, second], len(candidates)
    rms = truth.square().mean(dim=-1).sqrt()
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(design["draws"], *truth.shape, generator=generator)
    evidence = [noise_evidence(truth - of_first, noise) for of_first in outputs]
    squares, cross = (torch.stack(part, dim=-2).flatten(-2) for part in zip(*evidence, strict=True))
    found = {}
    for level in design["noise"]:
        fit = fit_under_noise(squares, cross, level * rms).unflatten(-1, (count, count))
        bits = bits_of_pairs(fit, first, second)
        found[f"noise {level:g} rms"] = {name: rounded(of) for name, of in bits.items()}
    return found


def ask(name: Positional[str], corpus: Positional[str], out: Positional[Path]) -> None:
    """Adds a line for each passage that has none."""
    design = read_design("e13")
    torch.set_num_threads(1)
    checkpoint = open_model(design["models"][name])
    text = held_out_text(checkpoint, corpus)
    circuit = Circuit(checkpoint.model, checkpoint.config.n_layers)
    candidates, wanted = commonest(text, design["candidates"]), design["passages"]
    positions, after = tuple(wanted["places"]), max(design["distances"])
    chosen = choose_passages(text, candidates, positions, wanted["count"], after, size=2)
    known = {row["key"] for row in read_rows(out)}
    for number, passage in enumerate(chosen):
        if (key := f"{name} {number}") in known:
            continue
        tokens, place = torch.tensor(passage.tokens), passage.place
        found = measure_pair(circuit, tokens, place, candidates, design, number)
        row = {"key": key, "kind": "pairs", "model": name, "prompt": number, "place": place,
               "tokens": [*passage.tokens], "distances": design["distances"],
               "bits": found}  # fmt: skip
        add_rows(out, row)
        print(key, flush=True)


def tabulate(rows: list[dict[str, Any]]) -> Any:
    """A line for each model, noise and distance: mean bits, and ratios with their intervals.

    `ratio` of a token is that of its bits with the other unknown to those with it known;
    `difference` is the first token's less the second's.
    """
    lines, generator = [], np.random.default_rng(0)
    flat = [
        {"model": row["model"], "noise": noise, "distance": distance}
        | {name: of[number] for name, of in bits.items()}
        for row in rows
        for noise, bits in row["bits"].items()
        for number, distance in enumerate(row["distances"])
    ]
    for key, group in pd.DataFrame(flat).groupby(["model", "noise", "distance"]):
        values = group.drop(columns=["model", "noise", "distance"])
        drawn = generator.integers(len(values), size=(SAMPLES, len(values)))
        means = {name: of.to_numpy()[drawn].mean(axis=1) for name, of in values.items()}
        line = dict(zip(("model", "noise", "distance"), key, strict=True))
        line |= {"passages": len(values)} | values.mean().to_dict()
        ratios = {}
        for token in ("first", "second"):
            known, unknown = (f"{token}, other {word}" for word in ("known", "unknown"))
            ratios[token] = means[unknown] / means[known]
            line |= {f"{token} ratio": line[unknown] / line[known]}
            line |= limits(f"{token} ratio", ratios[token])
            line[f"{token} judged"] = line[known] >= LEAST
        line["difference"] = line["first ratio"] - line["second ratio"]
        lines.append(line | limits("difference", ratios["first"] - ratios["second"]))
    return pd.DataFrame(lines)


def limits(name: str, drawn: Any) -> dict[str, float]:
    """The 95 % interval of bootstrap samples."""
    return dict(zip((f"{name} low", f"{name} high"), np.quantile(drawn, [0.025, 0.975]),
                    strict=True))  # fmt: skip


def judge_neighbour(table: Any) -> Verdict:
    """H1: whether knowing the neighbour matters little."""
    cells = [
        (f"{line.model}, {line.distance}, {token}", *line[[f"{token} ratio{end}" for end in ENDS]])
        for _, line in table[table.noise == JUDGED_NOISE].iterrows()
        for token in ("first", "second")
        if line[f"{token} judged"]
    ]
    verdict = "open"
    if any(high < MATTERS for *_, high in cells):
        verdict = "refuted"
    elif cells and all(low > MATTERS for _, _, low, _ in cells):
        verdict = "confirmed"
    return Verdict(verdict, say_cells(cells))


def judge_order(table: Any) -> Verdict:
    """H2: whether the earlier token loses more by its unknown neighbour."""
    cells = [
        (f"{line.model}, {line.distance}", *line[[f"difference{end}" for end in ENDS]])
        for _, line in table[table.noise == JUDGED_NOISE].iterrows()
        if line["first judged"] and line["second judged"]
    ]
    verdict = "open"
    if any(low > 0 for _, _, low, _ in cells):
        verdict = "refuted"
    elif cells and all(high < 0 for *_, high in cells):
        verdict = "confirmed"
    return Verdict(verdict, say_cells(cells))


def say_cells(cells: list[tuple[Any, ...]]) -> str:
    """Each figure with its interval."""
    return "; ".join(f"{of}: {mean:.2f} ({low:.2f} to {high:.2f})" for of, mean, low, high in cells)


def print_table(rows: Positional[Path]) -> None:
    """Prints the verdicts and the table of stored rows."""
    table = tabulate(read_stored(rows))
    print("H1:", *judge_neighbour(table))
    print("H2:", *judge_order(table))
    print(table.round(2).T.to_string())


if __name__ == "__main__":
    subcommand_cli_from_dict({"ask": ask, "table": print_table})
