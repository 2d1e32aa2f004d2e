"""E6: bits about an earlier token over a real training, as docs/results/experiments/e6.yaml asks.

    python -m scripts.experiments.training_bits RUNS DATA OUT.jsonl

RUNS holds the runs (`llama-s50`, ...), DATA the packed data. A line for each passage, model and
site; a line that is there is not measured again, so that the command may be stopped. The sites are
the last block's output, and what the head reads: its norm.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from tyro import cli
from tyro.conf import Positional

import arch.kernels.process  # noqa: F401 - before the first product
from eval.measures.bits.measure import Passage, candidate_outputs
from eval.models.checkpoint import open_model
from eval.models.text import HeldOutText, held_out_text, inside_stories
from eval.sites.circuit import Circuit
from scripts.experiments.forgetting import FOLDER, bits_of, commonest
from scripts.experiments.likely import read_rows

POSITIONS = 12, 100
"""Of the first passage's token that is asked about, and of the last one's."""
WINDOWS = 200, 128  # of held-out text, whose loss stands beside


def choose_passages(
    text: HeldOutText, candidates: Tensor, positions: tuple[int, int], count: int, after: int
) -> list[Passage]:
    """Passages from inside stories, whose tokens asked about differ.

    Args:
        candidates: the tokens that may be asked about.
        positions: of the first passage's token and of the last one's; the others lie between.
        after: tokens behind the one asked about.
    """
    first, last = positions
    allowed, chosen = set(candidates.tolist()), list[Passage]()
    for prompt in inside_stories(text, last + 1 + after):
        token = prompt.tokens[last]
        if token in allowed and all(token != passage.truth for passage in chosen):
            position = round(first + (last - first) * len(chosen) / (count - 1))
            chosen.append(Passage(prompt.index, prompt.tokens[last - position :], position))
        if len(chosen) == count:
            return chosen
    raise SystemExit(f"only {len(chosen)} passages; {count} are asked for")


@torch.no_grad()
def measure(
    path: Path, data: str, design: dict[str, Any], known: set[str]
) -> Iterator[dict[str, Any]]:
    """The lines of one model."""
    checkpoint = open_model(path)
    model, text = checkpoint.model, held_out_text(checkpoint, data)
    circuit = Circuit(model, checkpoint.config.n_layers)
    about = {"model": path.parents[1].name, "step": checkpoint.meta["step"],
             "tokens_seen": checkpoint.meta["tokens_seen"]}  # fmt: skip
    wanted, measured = design["passages"], design["measured"]
    candidates = commonest(text, wanted["candidates"])
    chosen = choose_passages(text, candidates, POSITIONS, wanted["count"], wanted["after"])
    background = circuit.of_tokens(text.windows("background", 16, 64, least=1))
    sites = {"block": lambda outputs: outputs, "head": model.norm}
    for number, passage in enumerate(chosen):
        keys = {site: f"{about['model']} {about['step']} {site} {number}" for site in sites}
        if set(keys.values()) <= known:
            continue
        (truth,) = (candidates == passage.truth).nonzero()[0].tolist()
        outputs = candidate_outputs(circuit, passage, candidates)
        for site, read in sites.items():
            largest = read(background).abs().amax(dim=(0, 1))
            found = bits_of(read(outputs), truth, passage.index, largest, measured)
            yield {"key": keys[site], "kind": "bits", **about, "site": site, "prompt": number,
                   "place": passage.place, "truth": passage.truth, "tokens": list(passage.tokens),
                   "distances": measured["distances"], **found}  # fmt: skip
    if (key := f"{about['model']} {about['step']} loss") not in known:
        windows = text.windows("evaluation", *WINDOWS)
        logits = torch.cat([model(part[:, :-1]) for part in windows.split(20)])
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        yield {"key": key, "kind": "loss", **about, "nats": float(nats)}


def ask(runs: Positional[Path], data: Positional[str], out: Positional[Path]) -> None:
    """Measures every model of every run."""
    design = yaml.safe_load((FOLDER / "e6.yaml").read_text())["design"]
    known = {row["key"] for row in read_rows(out)}
    for path in sorted(runs.glob("*/models/step-*/meta.json")):
        with out.open("a") as rows:
            for row in measure(path.parent, data, design, known):
                if row["key"] not in known:
                    rows.write(json.dumps(row) + "\n")
                    rows.flush()
        print(path.parent, flush=True)


if __name__ == "__main__":
    cli(ask)
