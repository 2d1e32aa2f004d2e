"""What the formats of engines give away, of one layer and of three: docs/results/audit.md.

    python -m scripts.experiments.formats ask NAME MODEL CORPUS OUT.jsonl
    python -m scripts.experiments.formats table ROWS.jsonl

Twenty held-out passages of 24 tokens are written to files as an engine would, one tensor for each
layer, and `eval recover` is asked for each file in another process of one thread: a row for each
format and choice of layers. What is in OUT is not asked again.
"""

import re
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pandas
import torch
from safetensors.torch import save_file
from torch import Tensor
from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

from eval.models.checkpoint import Checkpoint, open_model
from eval.models.text import held_out_text
from scripts.experiments import audit
from scripts.experiments.shared import add_rows, read_rows

PASSAGES, LENGTH = 20, 24
LAYERS = 1, 2, 4
TOGETHER = (*((layer,) for layer in LAYERS), LAYERS)
FORMATS = "bf16", "fp8_e4m3", "int8", "int4", "int2"


def store(stream: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
    """A stream `(B, T, D)` as a format stores it; codes have one scale a token, `(B, T, 1)`."""
    if form == "fp8_e4m3":
        return stream.to(torch.float8_e4m3fn), None
    return audit.store(stream, form if form in audit.FORMATS else f"{form}t")


@torch.no_grad()
def write(checkpoint: Checkpoint, tokens: Tensor, form: str, file: Path) -> None:
    """Writes the streams of all layers that are asked about, scales beside them."""
    model, held = checkpoint.model, {}
    for layer in LAYERS:
        codes, scale = store(model.hidden(model.embed(tokens), layer), form)
        held[f"block.{layer}"] = codes.contiguous()
        if scale is not None:
            held[f"block.{layer}.scale"] = scale.contiguous()
    save_file(held, file)


def recover(
    model: str, corpus: str, folder: str, layers: tuple[int, ...]
) -> tuple[list[dict[str, Any]], list[float], float]:
    """The row and the CPU seconds of each file of a folder, and the peak memory in GiB."""
    from eval.commands.recover import recover_file

    torch.set_num_threads(1)
    named: dict[str, Any] = {"tensor": f"block.{layers[0]}"}
    if len(layers) > 1:
        named = {"layer": layers}
    rows, seconds = [], []
    for file in sorted(Path(folder).iterdir()):
        started = time.process_time()
        rows += recover_file(str(file), model=model, corpus=corpus, **named).rows
        seconds.append(time.process_time() - started)
    (peak,) = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return rows, seconds, int(peak) / 2**20


def ask(
    name: Positional[str], model: Positional[str], corpus: Positional[str], out: Positional[Path]
) -> None:
    """Asks every format and choice of layers that is not in the file yet."""
    checkpoint = open_model(model)
    tokens = held_out_text(checkpoint, corpus).windows("evaluation", PASSAGES, LENGTH)
    known = {row["key"] for row in read_rows(out)}
    for form in FORMATS:
        for layers in TOGETHER:
            key = f"{name}.{form}.{'+'.join(map(str, layers))}"
            if key in known:
                continue
            with tempfile.TemporaryDirectory() as folder:
                for number, passage in enumerate(tokens):
                    file = Path(folder, f"{number:02}.safetensors")
                    write(checkpoint, passage[None], form, file)
                with get_context("spawn").Pool(1) as process:
                    rows, seconds, memory = process.apply(recover, (model, corpus, folder, layers))
            row = {"key": key, "model": name, "stored": form, "layers": list(layers)}
            row |= count(rows, tokens) | {"peak_gib": memory}
            row |= {"cpu_seconds": median(seconds), "most_cpu_seconds": max(seconds)}
            add_rows(out, row)
            print(row, flush=True)


def count(rows: list[dict[str, Any]], tokens: Tensor) -> dict[str, int]:
    """How many tokens of all passages are right, certain or likely, and wrong among these."""
    counts = dict.fromkeys(
        ["tokens", "right", "certain", "certain_wrong", "likely", "likely_wrong", "evaluations"], 0
    )
    for row, truth in zip(rows, tokens.tolist(), strict=True):
        counts["evaluations"] += row["evaluations"]
        for token, grade, true in zip(row["tokens"], row["grades"], truth, strict=True):
            counts["tokens"] += 1
            counts["right"] += token == true
            if grade in ("certain", "likely"):
                counts[grade] += 1
                counts[f"{grade}_wrong"] += token != true
    return counts


def print_table(file: Positional[Path]) -> None:
    """Prints the rows."""
    rows = pandas.DataFrame(read_rows(file)).drop(columns="key")
    print(rows.round(2).to_string(index=False))


if __name__ == "__main__":
    subcommand_cli_from_dict({"ask": ask, "table": print_table})
