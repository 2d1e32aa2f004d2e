"""What other people's recipes learn, on our packed data: one JSON file a run.

    python -m scripts.learn_baselines trainer-llama --data DIR --lr 2e-3 --steps 293 --out a.json
    python -m scripts.learn_baselines reference-flat --data ROWS --validate DIR --lr 2e-3 \\
        --steps 293 --out b.json

  trainer-llama       transformers' Trainer with its defaults, on its LlamaForCausalLM: AdamW (0.9,
                      0.999, 1e-8, no decay), linear fall to 0 without a warm-up, norm clipped to 1
  reference-flat      the recipe of maskedmixers (Badger, 2409.01482), on its own mixers and on its
  reference-expanded  Llama (d_ff = 4 d_model): the same but for a warm-up of 500 steps, or of a
  reference-llama     tenth of the steps where that is less

All see the windows, in the order, that `python -m train` makes of the same --data, --batch,
--context and --seed: of `packed` data, or of `rows` (left-padded ones are the reference's own; the
pads are read by the model and are out of the loss). The steps are those of `Trainer`, restated in
`scripts.baselines.loop`. The validation loss is that of `python -m train`, in nats per token and
bits per byte, over the same windows of each --validate directory.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch.files import write_file
from scripts.baselines.llama import llama
from scripts.baselines.loop import Inputs, Recipe, train
from scripts.baselines.reference import ReferenceMixer
from tokenizer import CorpusError, PackedData
from train.settings import RunError
from train.windows import IGNORE, Windows

KINDS = ("trainer-llama", "reference-flat", "reference-expanded", "reference-llama")


def main(arguments: list[str] | None = None) -> int:
    """Trains, validates, writes; the exit code."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    try:
        result = learn(options)
        write_file(options.out, json.dumps(result, indent=1).encode())
    except (CorpusError, RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def learn(options: argparse.Namespace) -> dict[str, Any]:
    """One run: its settings, the losses on the way, and what it came to.

    Raises:
        RunError, CorpusError: the data cannot be used.
    """
    data = PackedData(options.data)
    held_out = {path: PackedData(path) for path in options.validate or [options.data]}
    windows = Windows(data, "train", options.context, options.seed)
    if windows.count < options.batch:
        raise RunError(
            f"--data {data.path}: {windows.count} windows of {options.context} tokens are fewer "
            f"than one --batch of {options.batch}"
        )
    torch.manual_seed(options.seed)
    model = build(options.kind, data.meta["vocab_size"], options).to(options.device)
    recipe = Recipe(
        options.lr, options.steps, _warmup(options), options.clip, 0.0, options.precision
    )
    metrics: list[dict[str, Any]] = []
    validations: list[dict[str, Any]] = []
    seen, start, last = Count(), time.perf_counter(), options.steps

    def validate(step: int) -> None:
        for path, packed in held_out.items():
            nats, tokens = validation_loss(model, packed, options)
            bits = nats / packed.bytes_per_token("valid") / math.log(2)
            figures = {"val_loss": nats, "val_bits_per_byte": bits, "val_tokens": tokens}
            validations.append({"step": step, "tokens_seen": seen.tokens, "data": path, **figures})
            print(f"step {step}  valid loss {nats:.3f}  bits/byte {bits:.3f}  {path}", flush=True)

    def on_step(step: int, loss: Tensor | None) -> bool:
        nonlocal last
        if loss is None:
            last = step
            print(f"step {step}  the loss is no number", flush=True)
            return True
        if step % options.log_every == 0 or step == options.steps:
            row = {"step": step, "tokens_seen": seen.tokens, "loss": loss.item()}
            metrics.append({**row, "lr": recipe.rate(step - 1)})
            print(f"step {step}/{options.steps}  loss {row['loss']:.3f}", flush=True)
        if step in options.validate_at or step == options.steps:
            validate(step)
        return False

    if 0 in options.validate_at:
        validate(0)
    train(model, _batches(windows, options, seen), recipe, on_step)
    broken = last < options.steps or not validations or validations[-1]["step"] != options.steps
    final = next((v for v in validations if v["step"] == options.steps), {})
    return {
        **{k: v for k, v in vars(options).items() if k not in ("out", "validate", "validate_at")},
        "warmup": recipe.warmup,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layout": data.meta["layout"],
        "data_sha256": data.hash,
        "tokens_seen": seen.tokens,
        "broken_at": last if broken else None,
        "val_loss": final.get("val_loss"),
        "val_bits_per_byte": final.get("val_bits_per_byte"),
        "val_tokens": final.get("val_tokens"),
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
def validation_loss(
    model: nn.Module, data: PackedData, options: argparse.Namespace
) -> tuple[float, int]:
    """Mean loss in nats per token, and over how many: what `python -m train` reports."""
    windows, device = Windows(data, "valid", options.context), next(model.parameters()).device
    limit = options.validate_tokens and -(-options.validate_tokens // options.context)
    total, count = torch.zeros((), dtype=torch.float64), 0
    model.eval()
    for inputs, targets in windows.in_order(options.batch, limit):
        logits = _logits(model, inputs.to(device), options.context)
        nats = F.cross_entropy(
            logits.float().flatten(0, 1),
            targets.to(device).flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        total += nats.double().cpu()
        count += int((targets != IGNORE).sum())
    model.train()
    return total.item() / count, count


def _logits(model: nn.Module, inputs: Tensor, length: int) -> Tensor:
    """Of tokens `(B, T)`; a model of fixed length sees what follows T, and is causal."""
    T = inputs.shape[1]
    if isinstance(model, ReferenceMixer):
        inputs = F.pad(inputs, (0, length - T))
    return model(input_ids=inputs)["logits"][:, :T]


class Count:
    """Of the targets trained on."""

    tokens = 0


def _batches(windows: Windows, options: argparse.Namespace, seen: Count) -> Iterator[Inputs]:
    """Of `context` positions; in rows the last one has no next token."""
    first = 0
    while True:
        tokens, targets = windows.batch(first, options.batch)
        first += options.batch
        seen.tokens += int((targets != IGNORE).sum())
        missing = (0, options.context - tokens.shape[1])
        following = F.pad(targets, missing, value=IGNORE).contiguous()
        yield {
            "input_ids": F.pad(tokens, missing),
            "labels": following,
            "shift_labels": following,
        }


def _warmup(options: argparse.Namespace) -> int:
    if options.warmup is not None:
        return options.warmup
    return 0 if options.kind == "trainer-llama" else min(500, options.steps // 10)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data", required=True, help="packed data to train on")
    parser.add_argument("--validate", nargs="+", metavar="DIR", help="packed data; default: --data")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--lr", type=float, default=5e-5, help="highest rate; Trainer's default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4, help="of a Llama")
    parser.add_argument("--d-ff", type=int, help="of a Llama; default: 11/4 d_model, reference 4")
    parser.add_argument("--warmup", type=int, help="steps; see above")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--validate-at", type=int, nargs="+", default=[], metavar="STEP")
    parser.add_argument("--validate-tokens", type=int, help="of the split; default: all")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    counts = ("steps", "batch", "context", "d_model", "layers", "heads", "d_ff", "validate_tokens")
    for name in (*counts, "log_every", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}; at least 1")
    if options.warmup is not None and options.warmup < 0:
        parser.error(f"--warmup is {options.warmup}; at least 0")
    if options.kind.endswith("llama") and options.d_model % options.heads:
        parser.error(f"--heads is {options.heads}; it must divide --d-model {options.d_model}")
    if not options.lr > 0:
        parser.error(f"--lr is {options.lr}; it must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
