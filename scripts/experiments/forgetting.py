"""E8: bits about a token up to 512 positions back, as docs/results/experiments/e8b.yaml asks.

    python -m scripts.experiments.forgetting MODEL NAME CORPUS OUT.jsonl

NAME is `trained` or `untrained`. A line for each passage and layer; passages that are there are not
measured again, so that the command may be stopped. All layers share a passage's pass.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tyro import cli
from tyro.conf import Positional

import arch.kernels.process  # noqa: F401 - before the first product
from eval.measures.bits.measure import Passage, candidate_outputs, spread
from eval.measures.bits.posterior import (
    fit_of_codes,
    fit_under_noise,
    information,
    noise_evidence,
    quantise,
)
from eval.models.checkpoint import open_model
from eval.models.text import HeldOutText, held_out_text
from eval.sites.circuit import Circuit, join
from scripts.experiments.shared import add_rows, commonest, read_design, read_rows, rounded


def passages(text: HeldOutText, tokens: Tensor, design: dict[str, Any]) -> list[Passage]:
    """Windows whose token at the place asked about is a candidate; these tokens all differ."""
    count, before, after = design["count"], design["before"], design["after"]
    spare, chosen, seen = 64, [], set[int]()
    allowed = set(tokens.tolist())
    windows = text.windows("evaluation", design["skip"] + count, before + 1 + after + spare)
    for index, window in enumerate(windows[design["skip"] :], design["skip"]):
        line = window.tolist()
        free = (t for t in range(before, before + spare) if line[t] in allowed - seen)
        first = next(free) - before
        tokens_of = tuple(line[first : first + before + 1 + after])
        chosen.append(Passage(index, tokens_of, before))
        seen.add(chosen[-1].truth)
    return chosen


def bits_of(
    outputs: Tensor, number: int, index: int, largest: Tensor, design: dict[str, Any]
) -> dict[str, Any]:
    """The bits of candidates' outputs `(V, S, width)` about the one that is true, by precision."""
    truth, reported = outputs[number], design["distances"]
    rms = truth.square().mean(dim=-1).sqrt()
    generator = torch.Generator().manual_seed(index)
    noise = torch.randn(design["draws"], *truth.shape, generator=generator)
    uniform, bits = torch.full((1, len(outputs)), 1 / len(outputs)), {}
    evidence = noise_evidence(truth - outputs, noise)
    for level in design["noise"]:
        fit = fit_under_noise(*evidence, level * rms)
        bits[f"noise {level:g} rms"] = information(fit, uniform, reported)
    for quantiser in design["quantisers"]:
        codes = quantise(outputs, quantiser, largest)
        same = (codes == codes[number]).all(dim=-1)
        bits[quantiser] = information(fit_of_codes(same), uniform, reported)
    found = {name: {"alone": rounded(of[0, 0]), "cumulative": rounded(of[1, 0])}
             for name, of in bits.items()}  # fmt: skip
    return {"effect": rounded((spread(outputs) / rms)[reported]), "bits": found}


@torch.no_grad()
def measure(
    path: str, name: str, corpus: str, design: dict[str, Any], known: set[str]
) -> Iterator[dict[str, Any]]:
    """The lines of one model."""
    checkpoint = open_model(path)
    text = held_out_text(checkpoint, corpus)
    candidates, layers = commonest(text, design["candidates"]), design["layers"]
    whole, cut = join([Circuit(checkpoint.model, layer) for layer in layers])
    background = text.windows("background", 16, 64, least=1)
    largest = cut(whole.of_tokens(background).abs().amax(dim=(0, 1)))
    for passage in passages(text, candidates, design["passages"]):
        keys = [f"{name} {layer} {passage.index}" for layer in layers]
        if set(keys) <= known:
            continue
        (number,) = (candidates == passage.truth).nonzero()[0].tolist()
        outputs = cut(candidate_outputs(whole, passage, candidates))
        for key, layer, of_layer, limit in zip(keys, layers, outputs, largest, strict=True):
            found = bits_of(of_layer, number, passage.index, limit, design)
            yield {"key": key, "kind": "forgetting", "model": name, "layer": layer,
                   "passage": passage.index, "truth": passage.truth, "tokens": list(passage.tokens),
                   "distances": design["distances"], **found}  # fmt: skip


def ask(
    path: Positional[str], name: Positional[str], corpus: Positional[str], out: Positional[Path]
) -> None:
    """Measures a model."""
    known = {row["key"] for row in read_rows(out)}
    for row in measure(path, name, corpus, read_design("e8b"), known):
        add_rows(out, row)
        print(row["key"], flush=True)


if __name__ == "__main__":
    cli(ask)
