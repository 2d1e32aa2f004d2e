"""The trainers of a benchmark: ours, transformers', and the reference's masked mixers.

The reference (Badger, 2409.01482) is restated: the same sums, start and flaws. A mixer is a
`Conv1d` over the positions, of which the features are the length. What it must not see is zeroed in
place in every forward pass, so gradients above the diagonal live on: they count in the clipped
norm, and in AdamW's moments, and move weights that the next forward pass zeroes again. There is no
final norm, the length is fixed, and every tensor starts as PyTorch makes it.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch import ModelConfig
from scripts.bench.shared import BenchmarkError
from scripts.bench.turns import Turns
from tokenizer import PackedData

if TYPE_CHECKING:
    from train.recipe import Recipe

ENDLESS = 10**6  # steps; a race ends before


def llama(vocab_size: int, length: int, width: int, layers: int, d_ff: int) -> nn.Module:
    """An untrained `LlamaForCausalLM` with transformers' defaults in all that has no size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": length,
    }
    # None of its special tokens is one of ours; the cache is no use in training.
    special: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return LlamaForCausalLM(LlamaConfig(**sizes, **special, use_cache=False))


def trainer(model: nn.Module, rows: Any, folder: Path, batch: int, **settings: Any) -> Any:
    """transformers' `Trainer`, with its defaults but for what writes files and bars.

    Raises:
        BenchmarkError: it is not installed, or accelerate, which it needs, is not.
    """
    for package in ("transformers", "accelerate"):
        if not find_spec(package):
            raise BenchmarkError(f"transformers' Trainer needs {package}; pip install {package}")
    from transformers import PrinterCallback, Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        max_steps=ENDLESS,
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **settings,
    )
    made = Trainer(model=model, args=arguments, train_dataset=rows)  # pyright: ignore
    made.remove_callback(PrinterCallback)
    return made


class MaskedConv(nn.Conv1d):
    """tril(W) X + b for each tap of a kernel over the features, the weight masked in place first.

    Positions are channels: `length` of the input, and of the output as many or `out`.
    """

    def __init__(
        self, length: int, out: int | None = None, size: int = 1, bias: bool = True
    ) -> None:
        super().__init__(length, out or length, size, padding="same", bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T', D)`."""
        self.weight.data = self.weight.data.permute(2, 0, 1).tril().permute(1, 2, 0).contiguous()
        return super().forward(input)


def expanded(length: int, factor: int = 1, bias: bool = True) -> nn.Module:
    """The two-stage mixer; in the reference's code, what a factor above 1 adds is dead weight."""
    wide = factor * length
    return nn.Sequential(
        MaskedConv(length, wide, bias=bias), nn.GELU(), MaskedConv(wide, length, bias=bias)
    )


class ReferenceBlock(nn.Module):
    """Two LayerNorms, two residuals, and a feed-forward part."""

    def __init__(self, width: int, mixer: nn.Module, d_ff: int) -> None:
        super().__init__()
        self.seq_layernorm, self.patch_layernorm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.conv = mixer
        self.patch_ff = nn.Sequential(nn.Linear(width, d_ff), nn.GELU(), nn.Linear(d_ff, width))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, T, D)`."""
        x = x + self.conv(self.seq_layernorm(x))
        return x + self.patch_ff(self.patch_layernorm(x))


class ReferenceMixer(nn.Module):
    """The reference's language model around its mixers; called as transformers calls its own.

    Every input has the same length; the feed-forward part is 4 D wide unless told.
    """

    def __init__(
        self, mixers: Sequence[nn.Module], vocab_size: int, width: int, d_ff: int | None = None
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, width)
        self.mixerblocks = nn.ModuleList(
            ReferenceBlock(width, mixer, d_ff or 4 * width) for mixer in mixers
        )
        self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Logits `(B, T, V)`, and the loss in nats per token where there are labels `(B, T)`.

        Labels are the same tokens, -100 where they do not count.
        """
        x = self.wte(input_ids)
        for block in self.mixerblocks:
            x = block(x)
        logits = self.lm_head(x)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def reference(kind: str, vocab_size: int, length: int, width: int, layers: int) -> ReferenceMixer:
    """An untrained model of the reference, flat or expanded (by 1)."""
    make = {"flat": MaskedConv, "expanded": expanded}[kind]
    return ReferenceMixer([make(length) for _ in range(layers)], vocab_size, width)


class Training(NamedTuple):
    """What a contender trains: `batch` windows of packed data a step, with an empty folder."""

    model: ModelConfig
    batch: int
    device: str
    precision: str
    compiled: bool
    data: Path
    folder: Path


def our_run(turns: Turns, work: Training, recipe: str) -> None:
    """A run as `python -m train fit --config RECIPE` makes it, of other sizes and with AdamW."""
    from train.settings import BatchSettings, OptimizerSettings

    flags = {
        "precision": {"fp32": "32-true", "bf16": "bf16-mixed"}[work.precision],
        "validate_tokens": work.model.context,
        **({"compile": "true"} if work.compiled else {}),
    }
    settings = endless(recipe, work.data, work.folder, work.device, **flags)
    settings.model, settings.batch = work.model, BatchSettings(size=work.batch)
    settings.optimizer = OptimizerSettings(name="adamw", lr=1e-3)
    train_in_turns(turns, settings)


def endless(recipe: str, data: Path, folder: Path, device: str, **flags: Any) -> "Recipe":
    """A recipe of ours on one device (cpu or cuda), which goes on until a race is over.

    It writes into `folder` and saves no model but that of step 0. `flags` are more of `fit`'s.
    """
    from train import read_recipe

    accelerator = "gpu" if device == "cuda" else "cpu"
    given = {"config": recipe, "data": data, "run": folder / "run", "wandb": "disabled"}
    given |= {"save_steps": [], "save_every": "null"}
    given |= {"checkpoint_every": ENDLESS, "validate_every": ENDLESS}
    given |= {"trainer.accelerator": accelerator, "trainer.devices": 1}
    given |= {"trainer.strategy": "auto", "trainer.max_steps": ENDLESS, **flags}
    return read_recipe(*(f"--{name}={value}" for name, value in given.items()))


def train_in_turns(turns: Turns, settings: "Recipe") -> None:
    """Trains as `python -m train fit` does; every optimiser step counts."""
    from lightning.pytorch import Callback

    from train.run import Run

    made = Run(settings)

    class Steps(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            turns.step()

    made.trainer.callbacks.append(Steps())  # pyright: ignore[reportAttributeAccessIssue]
    made.fit()


def trainer_run(turns: Turns, work: Training, kind: str) -> None:
    """transformers' Llama, or a mixer of the reference by its kind, under its `Trainer`."""
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.step()

    torch.manual_seed(0)
    config = work.model
    sizes = (config.vocab_size, config.context, config.d_model, config.n_layers)
    model = llama(*sizes, config.hidden_width) if kind == "llama" else reference(kind, *sizes)
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "torch_compile": work.compiled,
        "use_cpu": work.device == "cpu",
        **({} if work.precision == "fp32" else {work.precision: True}),
    }
    tokens = torch.from_numpy(PackedData(work.data).tokens("train").astype("int64").reshape(-1))
    windows = tokens[: len(tokens) // config.context * config.context].view(-1, config.context)
    rows = [{"input_ids": window, "labels": window} for window in windows]
    rows *= -(-ENDLESS // len(rows))  # no epoch ends during a race
    made = trainer(model, rows, work.folder, work.batch, **settings)
    made.add_callback(Steps())
    made.train()
