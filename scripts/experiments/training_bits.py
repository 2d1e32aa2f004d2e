"""E6: bits about an earlier token over a real training, as docs/results/experiments/e6.yaml asks.

    python -m scripts.experiments.training_bits RUNS DATA OUT.jsonl

RUNS holds the runs (`llama-s50`, ...), DATA the packed data. A line for each passage, model and
site; a line that is there is not measured again, so that the command may be stopped. The sites are
the last block's output, and what the head reads: its norm.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tyro import cli
from tyro.conf import Positional

import arch.kernels.process  # noqa: F401 - before the first product
from eval.measures.bits.measure import candidate_outputs
from eval.models.checkpoint import open_model
from eval.models.text import held_out_text
from eval.sites.circuit import Circuit
from scripts.experiments.forgetting import bits_of
from scripts.experiments.shared import (
    add_rows,
    choose_passages,
    commonest,
    held_out_nats,
    read_design,
    read_rows,
)

POSITIONS = 12, 100
"""Of the first passage's token that is asked about, and of the last one's."""


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
        yield {"key": key, "kind": "loss", **about, "nats": held_out_nats(model, text)}


def ask(runs: Positional[Path], data: Positional[str], out: Positional[Path]) -> None:
    """Measures every model of every run."""
    design = read_design("e6")
    known = {row["key"] for row in read_rows(out)}
    for path in sorted(runs.glob("*/models/step-*/meta.json")):
        for row in measure(path.parent, data, design, known):
            if row["key"] not in known:
                add_rows(out, row)
        print(path.parent, flush=True)


if __name__ == "__main__":
    cli(ask)
