"""A run that an earlier commit began goes on to the losses that this commit stored.

`stored/` has its data, its checkpoint of step 12 and the losses up to step 24. On the kind of
processor that wrote them the bits are the same. Only a change that is meant to move losses, or to
end old checkpoints, writes it anew: `python -m tests.train.rundir.test_stored`.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.train.cases import fit, losses, pack_toy
from tests.train.processors import describe_arithmetic, has_same_arithmetic
from tokenizer import open_corpus, train_tokenizer

STORED = Path(__file__).with_name("stored")
CHECKPOINT = 12
FLAGS = "--trainer.max_steps 24 --checkpoint_every 12 --optimizer.name muon --optimizer.lr 0.01"
FLAGS += " --optimizer.embedding_lr 0.02 --model.mixers [flat,attention(heads=2)]"
NEAR = 5e-4
"""Of a loss, relative, between kinds of processors: Muon's margin in `test_numerics`."""


def test_an_older_checkpoint_goes_on_to_the_same_losses(tmp_path):
    run = shutil.copytree(STORED / "run", tmp_path / "run")
    assert fit(STORED / "data", run, *FLAGS.split(), "--resume", "auto") == 0
    expected = json.loads((STORED / "losses.json").read_text())
    assert len(losses(run)) == 24
    assert losses(run) == pytest.approx(expected["losses"], rel=NEAR)
    if has_same_arithmetic(expected):
        assert losses(run) == expected["losses"]


def make() -> None:
    """Writes the data, a run that stops at its checkpoint, and the losses of one that does not."""
    shutil.rmtree(STORED, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=400)
        data = pack_toy(tokenizer, Path(folder) / "toy", 4).path
        run = Path(folder) / "run"
        assert fit(data, run, *FLAGS.split()) == 0
        found = losses(run)
        shutil.copytree(data, STORED / "data")
        (STORED / "run/checkpoints").mkdir(parents=True)
        (checkpoint,) = (run / "checkpoints").glob(f"*{CHECKPOINT:06d}*.ckpt")
        shutil.copy(checkpoint, STORED / "run/checkpoints")
        config = (run / "config.yaml").read_text().replace(f"{folder}/", "")
        (STORED / "run/config.yaml").write_text(config)
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        early = [line for line in lines if json.loads(line).get("step", 0) <= CHECKPOINT]
        (STORED / "run/metrics.jsonl").write_text("".join(early))
    expected = {**describe_arithmetic(), "losses": found}
    (STORED / "losses.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    sys.exit(make())
