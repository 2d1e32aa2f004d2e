"""What the tests of training share: a run that takes a second."""

from pathlib import Path

from train.__main__ import main

TINY = """--wandb disabled --log_every 1 --validate_tokens 320 --trainer.accelerator cpu
--model.vocab_size 400 --model.context 16 --model.d_model 16 --model.n_layers 2
--batch.size 4 --schedule.warmup_steps 2 --trainer.max_steps 6"""


def fit(data: Path, run: Path, *flags: str | Path) -> int:
    """Runs `python -m train fit` in this process; later flags override."""
    return main(["fit", "--data", str(data), "--run", str(run), *TINY.split(), *map(str, flags)])
