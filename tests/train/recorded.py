"""Six recipes whose first 30 losses are on record.

    python -m tests.train.recorded     # writes them anew, after a change that is meant

The losses on record hold on any processor: `MARGIN` is at least 15 times what other instruction
sets and numbers of threads changed (fp32 3e-7, Muon 3e-5, bfloat16 2e-4).
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.train.cases import TINY, fit, losses, pack_toy
from tokenizer import open_corpus, train_tokenizer
from tokenizer.pack import Layout

STEPS = 30
FIXED = f"{TINY} --trainer.max_steps {STEPS} --checkpoint_every 100"
FIXED += " --validate_tokens 32 --optimizer.lr 0.01"
LLAMA = "--model.mixers [attention(heads=2)] --model.channel_mixer swiglu --model.norm rmsnorm"
RECIPES = {
    "flat": "",
    "llama": LLAMA,
    "muon": "--optimizer.name muon --optimizer.muon_mixing true --optimizer.embedding_lr 0.02",
    "hybrid": "--model.mixers [headed(heads=2),attention(heads=2)] --schedule.decay wsd",
    "rows": f"{LLAMA} --layout rows --schedule.decay linear --schedule.floor 0",
    "bfloat16": "--precision bf16-mixed",
}
THREE = ("hybrid", "muon", "rows")
"""Recipes that are computed in other ways, too: all mixers, optimisers and layouts are in them."""
LOSSES = Path(__file__).with_name("losses.json")
MARGIN = dict.fromkeys(RECIPES, 1e-5) | {"muon": 5e-4, "bfloat16": 3e-3}
"""Of a loss, relative: between processors, and between runs that sum in another order."""


def flags(name: str) -> list[str]:
    return f"{FIXED} {RECIPES[name]}".split()


def on_record(name: str) -> Any:
    """What the losses of a run are to be equal to."""
    return pytest.approx(json.loads(LOSSES.read_text())[name], rel=MARGIN[name])


def pack_both(tokenizer: Tokenizer, folder: Path) -> dict[str, Path]:
    """Data of both layouts, by the names of the recipes."""
    packed = pack_toy(tokenizer, folder / "packed", 40).path
    layout = Layout("rows", 17, "right")
    return dict.fromkeys(RECIPES, packed) | {
        "rows": pack_toy(tokenizer, folder / "rows", 40, layout).path
    }


def main() -> None:
    """Writes the losses of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        small = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=400)
        data = pack_both(small, Path(folder))
        for name in RECIPES:
            assert fit(data[name], Path(folder) / name, *flags(name)) == 0
        found = {name: [round(x, 6) for x in losses(Path(folder) / name)] for name in RECIPES}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
