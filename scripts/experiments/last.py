"""What the last position's logits give away of a prompt.

    python -m scripts.experiments.last ask NAME MODEL CORPUS SOLVER OUT.jsonl
    python -m scripts.experiments.last table ROWS.jsonl [ROWS.jsonl ...]

Fifty held-out passages of each length, starting inside stories. Of each, `recover` is given the
logits after its last token and no others, and searches for all tokens with a solver, `alternating`
or `decoder`, until 524,288 tokens were run forward for it; the decoder's training, once for each
model, is not among them. Fixed before the first row: every passage counts, and a prompt is
recovered where all its tokens are right. The solver `decoder` was written on the first twenty
passages of 10 tokens; what is asked are the fifty after the first fifty. What is in OUT is not
asked again.
"""

import time
from pathlib import Path
from typing import Any, cast

import pandas
import torch
from scipy.stats import binomtest
from torch import Tensor
from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

import arch.kernels.process  # noqa: F401 - before the first product
from eval import recover
from eval.models.checkpoint import Checkpoint, open_model
from eval.models.text import held_out_text
from scripts.experiments.formats import count
from scripts.experiments.shared import add_rows, read_rows

LENGTHS, PASSAGES, BUDGET = (5, 10, 15, 24), 50, 1 << 19  # tokens, prompts, tokens run


@torch.no_grad()
def write_logits(checkpoint: Checkpoint, passage: Tensor) -> Tensor:
    """The logits `(1, V)` after the last of `(T,)` tokens."""
    model = checkpoint.model
    return model.logits(model.hidden(model.embed(passage[None]), model.config.n_layers))[0, -1:]


def ask(
    name: Positional[str], model: Positional[str], corpus: Positional[str], solver: Positional[str],
    out: Positional[Path],
) -> None:  # fmt: skip
    """Asks every passage that is not in the file yet."""
    torch.set_num_threads(1)
    checkpoint = open_model(model)
    text = held_out_text(checkpoint, corpus)
    known = {row["key"] for row in read_rows(out)}
    for length in LENGTHS:
        passages = text.windows("evaluation", 2 * PASSAGES, length)[PASSAGES:]
        for number, passage in enumerate(passages):
            if (key := f"{name}.{solver}.{length}.{number}") in known:
                continue
            started = time.process_time()
            found = recover(
                checkpoint, write_logits(checkpoint, passage), part="logits", first=length - 1,
                corpus=corpus, solver=solver, settings={"budget": BUDGET},
            )  # fmt: skip
            row: dict[str, Any] = {"key": key, "model": name, "solver": solver, "length": length}
            answer = {"tokens": found.tokens[0].tolist(), "grades": found.grades[0],
                      "evaluations": found.evaluations[0]}  # fmt: skip
            row |= count([answer], passage[None])
            row |= {"cpu_seconds": round(time.process_time() - started, 2)}
            add_rows(out, row)


def tabulate(rows: pandas.DataFrame) -> pandas.DataFrame:
    """A line for each model, solver and length: prompts recovered (95 % interval), and the cost."""
    lines, groups = [], rows.groupby(["model", "solver", "length"])
    for key in groups.groups:
        (model, solver, length), group = cast(tuple[str, str, int], key), groups.get_group(key)
        whole = int((group.right == length).sum())
        limits = binomtest(whole, len(group)).proportion_ci(method="wilson")
        lines.append({
            "model": model, "solver": solver, "tokens": length,
            "prompts": len(group), "recovered": whole,
            "low %": 100 * limits.low, "high %": 100 * limits.high,
            "tokens right %": 100 * group.right.sum() / (length * len(group)),
            **{grade: group[grade].sum() for grade in
               ("certain", "certain_wrong", "likely", "likely_wrong")},
            "tokens run": group.evaluations.median(), "CPU s": group.cpu_seconds.median(),
        })  # fmt: skip
    return pandas.DataFrame(lines)


def print_table(*files: Positional[Path]) -> None:
    """Prints the table of rows."""
    rows = [row for file in files for row in read_rows(file)]
    print(tabulate(pandas.DataFrame(rows)).round(1).to_string(index=False))


if __name__ == "__main__":
    subcommand_cli_from_dict({"ask": ask, "table": print_table})
