"""From a text file to packed data: what `fit --data FILE.txt` does first."""

import dataclasses
import os
import time
from pathlib import Path

from arch.files import write_text
from tokenizer import VALID_FRACTION, PackedData, load_tokenizer, open_corpus, train_tokenizer
from tokenizer import pack as pack_data
from tokenizer.pack import Layout
from train.settings import Recipe, RunError

RANKS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Where launchers say which of several processes one is."""


def prepare_data(recipe: Recipe) -> None:
    """Gives a recipe whose data are stories a tokenizer of their own and packs them, in its run.

    The recipe's data become `RUN/data`; its vocabulary gets smaller if the stories are too few for
    so many entries. The validation split, a twentieth, has no part in the tokenizer. Nothing is
    done where the data are a directory, or were packed by an earlier start.

    Raises:
        RunError: the run's data are of another source.
        tokenizer.CorpusError: the stories cannot be read, or are too few.
    """
    source, run = recipe.given("data"), Path(recipe.given("run"))
    out, main = run / "data", {os.environ.get(name, "0") for name in RANKS} == {"0"}
    if not Path(source).is_file() and source.partition(":")[0] != "toy":
        return
    while not main and not (out / "meta.json").is_file():
        time.sleep(1)
    if not out.exists():
        print(f"{source}: training a tokenizer and packing into {out}", flush=True)
        stories = open_corpus(source, "train", valid_fraction=VALID_FRACTION)
        tokenizer = train_tokenizer(stories, recipe.model.vocab_size, fewer=True)
        write_text(run / "tokenizer.json", tokenizer.to_str(pretty=True))
        layout = recipe.run.layout or "packed"
        context = recipe.model.context if layout == "rows" else None
        pack_data(source, run / "tokenizer.json", out, Layout(layout, context))
    data = PackedData(out)
    if data.meta["source"] != source:
        raise RunError(
            f"--data {source}: {out} was packed from {data.meta['source']}; choose another --run"
        )
    size = load_tokenizer(out).get_vocab_size()
    if main:
        counts = (f"{data.meta['splits'][split]['tokens']:,}" for split in ("train", "valid"))
        print(f"{out}: {' + '.join(counts)} tokens, {size:,} entries in the vocabulary", flush=True)
    recipe.run.data = str(out)
    recipe.model = dataclasses.replace(recipe.model, vocab_size=size)
