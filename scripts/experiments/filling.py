"""E9: the published descent at 512 positions, as docs/results/experiments/e9.yaml asks.

    python -m scripts.experiments.filling DATA OUT MODEL [MODEL ...]

DATA is the packed data, OUT a results directory, MODEL an untrained model (`flat-s60`, ...). A row
for each prompt, number of hidden tokens and filling; what is there is not measured again.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tyro import cli
from tyro.conf import Positional

import arch.kernels.process  # noqa: F401 - before the first product
from eval.inversion.request import Inversion
from eval.inversion.task import plan
from eval.models.checkpoint import open_model
from eval.models.text import (
    HeldOutText,
    Prompt,
    drawn_prompts,
    held_out_text,
    padded,
    random_prompts,
)
from eval.rows.store import Results
from scripts.experiments.shared import read_design


def filled(prompts: list[Prompt], text: HeldOutText, length: int) -> dict[str, list[Prompt]]:
    """The prompts by what follows them; what follows is shown, and no part of any figure."""
    spare, count = length - len(prompts[0].tokens), 1 + max(prompt.index for prompt in prompts)
    other = text.windows("background", count, spare).tolist()
    drawn = [prompt.tokens for prompt in random_prompts(text.tokenizer, count, spare)]

    def followed(by: list[Any]) -> list[Prompt]:
        return [replace(prompt, tokens=(*prompt.tokens, *by[prompt.index]), pads=spare)
                for prompt in prompts]  # fmt: skip

    return {"nothing": prompts, "pads": padded(prompts, text.tokenizer, length),
            "stories": followed(other), "random": followed(drawn)}  # fmt: skip


def measure(path: str, data: str, design: dict[str, Any], results: Results) -> None:
    """Adds the rows of one model that are not there yet."""
    checkpoint = open_model(path)
    text, asked = held_out_text(checkpoint, data), design["prompts"]
    skip, count = asked["dealt"][int(Path(path).name.partition("-s")[2])]
    prompts = drawn_prompts("inside", text, count, asked["length"], skip)
    slices = tuple(f"[:, {hidden}:, :]" for hidden in design["hidden"])
    request = Inversion(solvers=("descent",), slices=slices, layers=("last",))
    for filling, filled_prompts in filled(prompts, text, design["positions"]).items():
        for task in plan(checkpoint, request, filled_prompts, data, batch=design["batch"]):
            results.append(row | {"filling": filling} for row in task.run(results))


def ask(data: Positional[str], out: Positional[str], models: Positional[list[str]]) -> None:
    """Measures the models."""
    design = read_design("e9")
    for path in models:
        measure(path, data, design, Results(out))
        print(path, flush=True)


if __name__ == "__main__":
    cli(ask)
