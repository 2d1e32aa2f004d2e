"""E9: the published descent at 512 positions, as docs/results/experiments/e9.yaml asks.

    python -m scripts.experiments.filling MODELS DATA OUT.jsonl [ARCHITECTURE-sSEED ...]

MODELS holds the untrained models (`flat-s60`, ...; those named alone, or all), DATA the packed
data. A row for each prompt, number of hidden tokens and filling; rows that are there are not
measured again, so that the command may be stopped.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import arch.threads  # noqa: F401 - before the first product
from eval.inversion.ask import Question, plan
from eval.inversion.solver import parse_solvers
from eval.models import open_model
from eval.slices import Slice
from eval.text import HeldOutText, Prompt, drawn_prompts, held_out_text, padded, random_prompts
from scripts.experiments.forgetting import FOLDER


def filled(prompts: list[Prompt], text: HeldOutText, length: int) -> dict[str, list[Prompt]]:
    """The prompts by what follows them; what follows is shown, and no part of any figure."""
    spare, count = length - len(prompts[0].tokens), 1 + max(prompt.index for prompt in prompts)
    other = text.windows("background", count, spare).tolist()
    drawn = [prompt.tokens for prompt in random_prompts(text.tokenizer, count, spare)]

    def followed(by: list[Any]) -> list[Prompt]:
        return [replace(each, tokens=(*each.tokens, *by[each.index]), pads=spare)
                for each in prompts]  # fmt: skip

    return {"nothing": prompts, "pads": padded(prompts, text.tokenizer, length),
            "stories": followed(other), "random": followed(drawn)}  # fmt: skip


def measure(
    path: Path, data: str, design: dict[str, Any], known: set[str]
) -> Iterator[dict[str, Any]]:
    """The rows of one model that are not known, question by question."""
    checkpoint = open_model(path)
    text, asked = held_out_text(checkpoint, data), design["prompts"]
    skip, count = asked["dealt"][int(path.name.partition("-s")[2])]
    prompts = drawn_prompts("inside", text, count, asked["length"], skip)
    solvers = tuple(parse_solvers({"descent": {}}))
    for filling, some in filled(prompts, text, design["positions"]).items():
        slices = tuple(Slice.parse(f"[:, {hidden}:, :]") for hidden in design["hidden"])
        question = Question(solvers, slices, layers="last")
        for task in plan(checkpoint, question, some, data, batch=design["batch"]):
            if not known.issuperset(task.keys):
                yield from (row | {"filling": filling} for row in task.rows())


def main() -> None:
    """Measures the models."""
    models, data, out, *names = sys.argv[1:]
    design = yaml.safe_load((FOLDER / "e9.yaml").read_text())["design"]
    file = Path(out)
    lines = file.read_text().splitlines() if file.is_file() else []
    known = {json.loads(line)["key"] for line in lines}
    for path in sorted(path.parent for path in Path(models).glob("*/meta.json")):
        if not names or path.name in names:
            with file.open("a") as rows:
                for row in measure(path, data, design, known):
                    rows.write(json.dumps(row) + "\n")
                    rows.flush()
            print(path, flush=True)


if __name__ == "__main__":
    main()
