"""What other people's recipes learn, on our packed data: one JSON file a run.

    python -m scripts.bench_learning trainer-llama --data DIR --lr 2e-3 --steps 293 --out a.json
    python -m scripts.bench_learning reference-flat --data ROWS --validate DIR --lr 2e-3 \\
        --steps 293 --out b.json

  trainer-llama       transformers' Trainer with its defaults, on its LlamaForCausalLM: AdamW (0.9,
                      0.999, 1e-8, no decay), linear fall to 0 without a warm-up, norm clipped to 1
  reference-flat      the recipe of maskedmixers (Badger, 2409.01482), on its own mixers and on its
  reference-expanded  Llama (d_ff = 4 d_model): the same but for a warm-up of 500 steps, or of a
  reference-llama     tenth of the steps where that is less

All see the windows, in the order, that `python -m train` makes of the same --data, --batch,
--context and --seed: of `packed` data, or of `rows` (left-padded ones are the reference's own; the
pads are read by the model and are out of the loss). The validation loss is that of `python -m
train`, in nats per token and bits per byte, over the same windows of each --validate directory.
"""

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from arch.files import write_file
from scripts import bench
from scripts.baselines import ReferenceMixer, llama, trainer
from scripts.bench import BenchmarkError
from tokenizer import CorpusError, PackedData
from train.data import IGNORE, Windows
from train.settings import RunError

KINDS = ("trainer-llama", "reference-flat", "reference-expanded", "reference-llama")
LEFT_OUT = ("out", "validate", "validate_at", "words")


def flags() -> argparse.ArgumentParser:
    """What a run is told."""
    parser, natural = bench.parser(__doc__, "cpu"), bench.natural
    add = parser.add_argument
    add("kind", choices=KINDS)
    add("--data", required=True, help="packed data to train on")
    add("--validate", nargs="+", default=[], help="packed data; --data unless given")
    add("--lr", type=float, default=5e-5, help="highest rate (%(default)s, Trainer's own)")
    add("--seed", type=int, default=0, help="of the start and the order (%(default)s)")
    add("--steps", type=natural, required=True, help="of training")
    add("--batch", type=natural, default=16, help="windows a step (%(default)s)")
    add("--context", type=natural, default=128, help="tokens of a window (%(default)s)")
    add("--d-model", type=natural, default=128, help="width (%(default)s)")
    add("--layers", type=natural, default=4, help="blocks (%(default)s)")
    add("--heads", type=natural, default=4, help="of a Llama (%(default)s)")
    add("--d-ff", type=natural, help="of a Llama; 11/4 d_model unless given, reference 4")
    add("--warmup", type=int, help="steps; see above")
    add("--clip", type=float, default=1.0, help="the gradient's norm (%(default)s)")
    add("--validate-at", type=int, nargs="+", default=[], help="steps")
    add("--validate-tokens", type=natural, help="of the split; all unless given")
    add("--log-every", type=natural, default=10, help="steps (%(default)s)")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    return parser


def main(words: list[str] | None = None) -> int:
    """Trains, validates, writes; the exit code."""
    options = bench.parse(flags(), words, threads=(1, 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        if options.out is None:
            raise BenchmarkError("--out is missing; give the JSON file to write")
        result = train_model(options)
        write_file(options.out, json.dumps(result, indent=1).encode())
    except (BenchmarkError, CorpusError, RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(threads)
    return 0


def train_model(options: argparse.Namespace) -> dict[str, Any]:
    """One run: its settings, the losses on the way, and what it came to.

    Raises:
        BenchmarkError, RunError, CorpusError: the data cannot be used, or Trainer is missing.
    """
    from transformers import TrainerCallback

    if options.warmup is None:
        tenth = min(500, options.steps // 10)
        options.warmup = 0 if options.kind == "trainer-llama" else tenth
    if options.warmup < 0:
        raise BenchmarkError(f"--warmup is {options.warmup}; at least 0")
    if options.kind.endswith("llama") and options.d_model % options.heads:
        raise BenchmarkError(
            f"--heads is {options.heads}; it must divide --d-model {options.d_model}"
        )
    if not options.lr > 0:
        raise BenchmarkError(f"--lr is {options.lr}; it must be above 0")
    data = PackedData(options.data)
    held_out = {path: PackedData(path) for path in options.validate or [options.data]}
    steps = Steps(data, options)
    torch.manual_seed(options.seed)
    model = build(options.kind, data.meta["vocab_size"], options)
    metrics: list[dict[str, Any]] = []
    validations: list[dict[str, Any]] = []

    def validate(step: int) -> None:
        for path, packed in held_out.items():
            nats, tokens = held_out_loss(model, packed, options)
            bits = nats / packed.bytes_per_token("valid") / math.log(2)
            figures = {"val_loss": nats, "val_bits_per_byte": bits, "val_tokens": tokens}
            seen = steps.targets(step)
            validations.append({"step": step, "tokens_seen": seen, "data": path, **figures})
            print(f"step {step}  valid loss {nats:.3f}  bits/byte {bits:.3f}  {path}", flush=True)

    class Record(TrainerCallback):
        broken_at: int | None = None

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            if 0 in options.validate_at:
                validate(0)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any
        ) -> None:
            step, loss = state.global_step, logs.get("loss")
            if loss is None:
                return
            if not math.isfinite(loss):
                self.broken_at, control.should_training_stop = step, True
                print(f"step {step}  the loss is no number", flush=True)
                return
            if step % options.log_every == 0 or step == options.steps:
                row = {"step": step, "tokens_seen": steps.targets(step), "loss": loss}
                metrics.append({**row, "lr": logs["learning_rate"]})
                print(f"step {step}/{options.steps}  loss {loss:.3f}", flush=True)
            if step in options.validate_at or step == options.steps:
                validate(step)

    record, start = Record(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-learning-") as folder:
        made = trainer(
            model,
            steps,
            Path(folder),
            options.batch,
            options.steps,
            learning_rate=options.lr,
            warmup_steps=options.warmup,
            max_grad_norm=options.clip,
            seed=options.seed,
            use_cpu=options.device == "cpu",
            train_sampling_strategy="sequential",
            logging_strategy="steps",
            logging_steps=1,
            logging_nan_inf_filter=False,
            **({} if options.precision == "fp32" else {options.precision: True}),
        )
        made.add_callback(record)
        made.train()
    final = next((v for v in validations if v["step"] == options.steps), {})
    names = ("val_loss", "val_bits_per_byte", "val_tokens")
    return {
        **{k: v for k, v in vars(options).items() if k not in LEFT_OUT},
        "parameters": sum(p.numel() for p in model.parameters()),
        "layout": data.meta["layout"],
        "data_sha256": data.hash,
        "tokens_seen": steps.targets(record.broken_at or options.steps),
        "broken_at": record.broken_at,
        **{name: final.get(name) for name in names},
        "validations": validations,
        "metrics": metrics,
        "seconds": time.perf_counter() - start,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
        },
    }


def build(kind: str, vocab_size: int, options: argparse.Namespace) -> nn.Module:
    """The untrained model of a kind."""
    sizes = (vocab_size, options.context, options.d_model, options.layers)
    whose, _, what = kind.partition("-")
    if what == "llama":
        d_ff = options.d_model * 11 // 4 if whose == "trainer" else 4 * options.d_model
        return llama(*sizes, options.d_ff or d_ff, options.heads)
    return ReferenceMixer(what, *sizes)


@torch.no_grad()
def held_out_loss(
    model: nn.Module, data: PackedData, options: argparse.Namespace
) -> tuple[float, int]:
    """Mean loss in nats per token, and over how many: what `python -m train` reports."""
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
    model.train()
    return total / count, count


class Steps(Dataset):
    """The windows of all steps, in their order, as transformers takes them.

    Raises:
        RunError: there are fewer than one batch.
    """

    def __init__(self, data: PackedData, options: argparse.Namespace) -> None:
        self._windows = Windows(data, "train", options.context, options.seed)
        self._context, self._batch = options.context, options.batch
        self._count, self._seen = options.steps * options.batch, [0]
        if self._windows.count < options.batch:
            raise RunError(
                f"--data {data.path}: {self._windows.count} windows of {options.context} tokens are"
                f" fewer than one --batch of {options.batch}"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """Tokens and their next ones, both `(context,)`; in rows the last one has no next token."""
        tokens, targets = (one[0] for one in self._windows.batch(number, 1))
        missing = (0, self._context - len(tokens))
        following = F.pad(targets, missing, value=IGNORE)
        return {
            "input_ids": F.pad(tokens, missing),
            "labels": following,
            "shift_labels": following,
        }

    def targets(self, step: int) -> int:
        """How many targets the first steps have."""
        while len(self._seen) <= step:
            first = (len(self._seen) - 1) * self._batch
            self._seen.append(self._seen[-1] + self._windows.targets(first, self._batch))
        return self._seen[step]


if __name__ == "__main__":
    sys.exit(main())
