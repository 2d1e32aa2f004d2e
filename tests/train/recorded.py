"""Six recipes whose first 100 losses are on record, in a file for each kind of processor.

    python -m tests.train.recorded     # writes this one's, after a change that is meant

On the kind of processor and the version of torch that a file names, the losses are the same to the
bit. On any other they are near those of the first file: `MARGIN` is 1e-5 in fp32, where the
instruction sets on record (AVX-512, AVX2, none) differ by 9e-7; 5e-4 by Muon, where they differ by
6e-5; and 3e-3 in bfloat16, where they differ by 3e-4.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.train.cases import TINY, fit, losses, pack_toy
from tests.train.processors import describe_arithmetic, has_same_arithmetic, kind_of_processor
from tokenizer import open_corpus, train_tokenizer
from tokenizer.pack import Layout

STEPS = 100
FEW = 12
"""Steps of runs that are computed in other ways: a signal ends them there."""
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
LOSSES = Path(__file__).with_name("losses")
MARGIN = dict.fromkeys(RECIPES, 1e-5) | {"muon": 5e-4, "bfloat16": 3e-3}
"""Of a loss, relative: between processors, and between runs that sum in another order."""


def flags(name: str) -> list[str]:
    return f"{FIXED} {RECIPES[name]}".split()


def on_record(name: str, steps: int = FEW) -> Any:
    """What the first losses of a run are to be near to, on any processor."""
    own = LOSSES / f"{kind_of_processor()}.json"
    record = read_record(own if own.exists() else min(LOSSES.iterdir()))
    return pytest.approx(record["losses"][name][:steps], rel=MARGIN[name])


def exactly_on_record(name: str) -> list[float] | None:
    """What the losses of a run are to the bit; None where no record is of this arithmetic."""
    records = filter(has_same_arithmetic, map(read_record, LOSSES.iterdir()))
    return next((record["losses"][name] for record in records), None)


def read_record(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def pack_both(tokenizer: Tokenizer, folder: Path) -> dict[str, Path]:
    """Data of both layouts, by the names of the recipes."""
    packed = pack_toy(tokenizer, folder / "packed", 40).path
    layout = Layout("rows", 17, "right")
    return dict.fromkeys(RECIPES, packed) | {
        "rows": pack_toy(tokenizer, folder / "rows", 40, layout).path
    }


def main() -> None:
    """Writes the losses of this kind of processor."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        small = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=400)
        data = pack_both(small, Path(folder))
        for name in RECIPES:
            assert fit(data[name], Path(folder) / name, *flags(name)) == 0
        found = {name: losses(Path(folder) / name) for name in RECIPES}
    LOSSES.mkdir(exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in RECIPES)
    about = json.dumps(describe_arithmetic())[1:-1]
    text = f'{{{about}, "losses": {{\n{lines}\n}}}}\n'
    (LOSSES / f"{kind_of_processor()}.json").write_text(text)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    main()
