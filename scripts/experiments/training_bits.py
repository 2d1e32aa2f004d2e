"""E6: bits about an earlier token over a real training, as docs/results/experiments/e6.yaml asks.

    python -m scripts.experiments.training_bits RUNS DATA OUT.jsonl

RUNS holds the runs (`llama-s50`, ...), DATA the packed data. A line for each passage, model and
site; a line that is there is not measured again, so that the command may be stopped.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import arch.threads  # noqa: F401 - before the first product
from eval.circuit import Circuit
from eval.information.measure import Passage, Question, measure_bits
from eval.information.task import Design
from eval.inversion.problem import capture
from eval.models import Checkpoint, open_model
from eval.text import held_out_text, inside_stories

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "experiments"
WINDOWS = 200, 128  # of held-out text, whose loss stands beside


@dataclass(frozen=True)
class HeadInput(Circuit):
    """What the head reads: the last block's output behind the final norm."""

    def _walk(self, *given: Any) -> Tensor:
        outputs = super()._walk(*given)
        return self.model.norm(outputs.to(self.model.embedding.weight.dtype)).to(outputs)


def passages(
    checkpoint: Checkpoint, data: str, allowed: set[int], asked: dict[str, Any]
) -> list[Passage]:
    """Passages from inside stories, each with a place of its own; the tokens asked about differ."""
    first, last = 12, 100
    count, after = asked["count"], asked["after"]
    chosen: list[Passage] = []
    for prompt in inside_stories(held_out_text(checkpoint, data), last + 1 + after):
        token = prompt.tokens[last]
        if token in allowed and all(token != passage.truth for passage in chosen):
            place = round(first + (last - first) * len(chosen) / (count - 1))
            chosen.append(Passage(prompt.index, prompt.tokens[last - place :], place))
        if len(chosen) == count:
            return chosen
    raise SystemExit(f"{data}: only {len(chosen)} passages; {count} are asked for")


@torch.no_grad()
def measure(
    path: Path, data: str, asked: dict[str, Any], known: set[str]
) -> Iterator[dict[str, Any]]:
    """The lines of one model."""
    checkpoint = open_model(path)
    depth, model = checkpoint.config.n_layers, checkpoint.model
    about = {"model": path.parents[1].name, "step": checkpoint.meta["step"],
             "tokens_seen": checkpoint.meta["tokens_seen"]}  # fmt: skip
    place, measured = asked["design"]["passages"], asked["design"]["measured"]
    question = Question(tuple(measured["distances"]), tuple(measured["noise"]),
                        tuple(measured["quantisers"]), measured["draws"])  # fmt: skip
    design = Design(data, question, candidates=place["candidates"])
    sample = design.of(checkpoint)
    text = held_out_text(checkpoint, data)
    for name, site in (("block", Circuit(model, depth)), ("head", HeadInput(model, depth))):
        largest = site.of_tokens(sample.calibration).abs().amax(dim=(0, 1))
        allowed = set(sample.candidates.tokens.tolist())
        for number, passage in enumerate(passages(checkpoint, data, allowed, place)):
            key = f"{about['model']} {about['step']} {name} {number}"
            if key in known:
                continue
            ((_, rounding),) = capture([site], torch.tensor([passage.tokens]))
            found = measure_bits(site, passage, sample.candidates, largest, rounding[0], question)
            bits = found.pop("bits")["uniform"]
            yield {"key": key, "kind": "bits", **about, "site": name, **found, "bits": bits}
    if (key := f"{about['model']} {about['step']} loss") not in known:
        windows = text.windows("evaluation", *WINDOWS)
        logits = torch.cat([model(part[:, :-1]) for part in windows.split(20)])
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        yield {"key": key, "kind": "loss", **about, "nats": float(nats)}


def main() -> None:
    """Measures every model of every run."""
    runs, data, out = sys.argv[1:]
    asked = yaml.safe_load((FOLDER / "e6.yaml").read_text())
    file = Path(out)
    lines = file.read_text().splitlines() if file.is_file() else []
    known = {json.loads(line)["key"] for line in lines}
    for path in sorted(Path(runs).glob("*/models/step-*/meta.json")):
        with file.open("a") as rows:
            for row in measure(path.parent, data, asked, known):
                rows.write(json.dumps(row) + "\n")
                rows.flush()
        print(path.parent, flush=True)


if __name__ == "__main__":
    main()
