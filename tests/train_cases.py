"""What the tests of training share: data and a run that take a second."""

from pathlib import Path

from tokenizers import Tokenizer

from tokenizer import PackedData, pack
from tokenizer.pack import Layout
from train.__main__ import main

TINY = """--wandb disabled --log_every 1 --validate_tokens 320 --trainer.accelerator cpu
--model.vocab_size 400 --model.context 16 --model.d_model 16 --model.n_layers 2
--batch.size 4 --schedule.warmup_steps 2 --trainer.max_steps 6"""


def pack_toy(
    tokenizer: Tokenizer, folder: Path, stories: int, layout: Layout | None = None
) -> PackedData:
    """Packs stories of the embedded corpus into a new folder."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return pack(f"toy:{stories}", folder / "tokenizer.json", folder / "data", layout)


def fit(data: Path, run: Path, *flags: str | Path) -> int:
    """Runs `python -m train fit` in this process; later flags override."""
    return main(["fit", "--data", str(data), "--run", str(run), *TINY.split(), *map(str, flags)])
