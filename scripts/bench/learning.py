"""What other people's recipes learn, on our packed data: one JSON file a run.

    python -m scripts.bench.learning trainer-llama --data DIR --lr 2e-3 --steps 293 --out a.json

  trainer-llama       transformers' Trainer with its defaults, on its LlamaForCausalLM: AdamW (0.9,
                      0.999, 1e-8, no decay), linear fall to 0 without a warm-up, norm clipped to 1
  reference-flat      the recipe of maskedmixers (Badger, 2409.01482), on its own mixers: the same
  reference-expanded  but for a warm-up of 500 steps, or of a tenth of the steps where that is less

All see the windows, in the order, that `python -m train` makes of the same --data, --batch,
--context and --seed: of `packed` data, or of `rows` (left-padded ones are the reference's own; the
pads are read by the model and are out of the loss). The validation loss is that of `python -m
train`, in nats per token and bits per byte, over the same windows.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from arch.storage.files import write_file
from scripts.bench import shared as bench
from scripts.bench.baselines import ReferenceMixer, llama, reference, trainer
from scripts.bench.shared import BenchmarkError
from tokenizer import CorpusError, PackedData
from train.settings import RunError
from train.steps.data import IGNORE, Windows, bytes_per_token

KINDS = ("trainer-llama", "reference-flat", "reference-expanded")


def main(words: list[str] | None = None) -> int:
    """Trains, validates, writes; the exit code."""
    parser, natural = bench.parser(__doc__, "cpu"), bench.natural
    add = parser.add_argument
    add("kind", choices=KINDS)
    add("--data", required=True, help="packed data to train on")
    add("--lr", type=float, default=5e-5, help="highest rate (%(default)s, Trainer's own)")
    add("--seed", type=int, default=0, help="of the start and the order (%(default)s)")
    add("--steps", type=natural, required=True, help="of training")
    add("--batch", type=natural, default=16, help="windows a step (%(default)s)")
    add("--context", type=natural, default=128, help="tokens of a window (%(default)s)")
    add("--d-model", type=natural, default=128, help="width (%(default)s)")
    add("--layers", type=natural, default=4, help="blocks (%(default)s)")
    add("--validate-tokens", type=natural, help="of the split; all unless given")
    options = bench.parse(parser, words, threads=(1, 1))
    if options.out is None:
        parser.error("--out is missing; give the JSON file to write")
    if not options.lr > 0:
        parser.error(f"--lr is {options.lr}; it must be above 0")
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        write_file(options.out, json.dumps(train_model(options), indent=1).encode())
    except (BenchmarkError, CorpusError, RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(threads)
    return 0


def train_model(options: argparse.Namespace) -> dict[str, Any]:
    """One run: its settings, its steps' losses and rates, and the loss that it came to.

    Raises:
        BenchmarkError, RunError, CorpusError: the data cannot be used, or Trainer is missing.
    """
    data, warmup = PackedData(options.data), min(500, options.steps // 10)
    steps = Steps(data, options)
    torch.manual_seed(options.seed)
    sizes = data.meta["vocab_size"], options.context, options.d_model, options.layers
    whose, _, kind = options.kind.partition("-")
    if whose == "trainer":
        model, warmup = llama(*sizes, options.d_model * 11 // 4), 0
    else:
        model = reference(kind, *sizes)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-learning-") as folder:
        made = trainer(
            model,
            steps,
            Path(folder),
            options.batch,
            options.steps,
            learning_rate=options.lr,
            warmup_steps=warmup,
            max_grad_norm=1.0,
            seed=options.seed,
            use_cpu=options.device == "cpu",
            train_sampling_strategy="sequential",
            logging_strategy="steps",
            logging_steps=1,
            logging_nan_inf_filter=False,
        )
        made.train()
    nats, bits, tokens = held_out_loss(model, data, options)
    print(f"step {options.steps}  valid loss {nats:.3f}  bits/byte {bits:.3f}", flush=True)
    return {
        **{k: v for k, v in vars(options).items() if k not in ("out", "words")},
        "warmup": warmup,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layout": data.meta["layout"],
        "data_sha256": data.hash,
        "tokens_seen": steps.targets,
        "val_loss": nats if math.isfinite(nats) else None,
        "val_bits_per_byte": bits if math.isfinite(nats) else None,
        "val_tokens": tokens,
        "metrics": [
            {"step": line["step"], "loss": line["loss"], "lr": line["learning_rate"]}
            for line in made.state.log_history
            if math.isfinite(line.get("loss", math.nan))
        ],
        "seconds": time.perf_counter() - start,
        "machine": bench.hardware(options, "transformers"),
    }


@torch.no_grad()
def held_out_loss(
    model: nn.Module, data: PackedData, options: argparse.Namespace
) -> tuple[float, float, int]:
    """Mean loss in nats per token and in bits per byte, as training has it, and over how many."""
    windows, device = Windows(data, "valid", options.context), next(model.parameters()).device
    limit = options.validate_tokens and -(-options.validate_tokens // options.context)
    total, count = 0.0, 0
    model.eval()
    for inputs, targets in windows.in_order(options.batch, limit):
        T = inputs.shape[1]
        if isinstance(model, ReferenceMixer):  # of fixed length, and causal
            inputs = F.pad(inputs, (0, options.context - T))
        logits = model(input_ids=inputs.to(device))["logits"][:, :T].float().flatten(0, 1)
        following = targets.to(device).flatten()
        total += F.cross_entropy(logits, following, ignore_index=IGNORE, reduction="sum").item()
        count += int((targets != IGNORE).sum())
    nats = total / count
    bits = nats / bytes_per_token(data, "valid", windows, limit) / math.log(2)
    return nats, bits, count


class Steps(Dataset):
    """The windows of all steps, in their order, as transformers takes them.

    Raises:
        RunError: there are fewer than one batch.
    """

    def __init__(self, data: PackedData, options: argparse.Namespace) -> None:
        self._windows = Windows(data, "train", options.context, options.seed)
        self._context, self._count = options.context, options.steps * options.batch
        if self._windows.count < options.batch:
            raise RunError(
                f"--data {data.path}: {self._windows.count} windows of {options.context} tokens are"
                f" fewer than one --batch of {options.batch}"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """Tokens and their next ones, both `(context,)`; in rows the last one has no next token."""
        tokens, targets = (batch[0] for batch in self._windows.batch(number, 1))
        missing = (0, self._context - len(tokens))
        following = F.pad(targets, missing, value=IGNORE)
        return {
            "input_ids": F.pad(tokens, missing),
            "labels": following,
            "shift_labels": following,
        }

    @property
    def targets(self) -> int:
        """How many targets all steps have."""
        return int((self._windows.batch(0, self._count)[1] != IGNORE).sum())


if __name__ == "__main__":
    sys.exit(main())
