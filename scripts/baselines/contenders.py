"""Who races: `python -m train`'s own path, transformers' Trainer, and the loop that stands for it.

Each function trains until `turns` says that the race is over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from arch import ModelConfig
from scripts.baselines.llama import llama
from scripts.baselines.loop import Recipe, train
from scripts.baselines.reference import ReferenceMixer
from scripts.baselines.turns import Turns
from tokenizer import PackedData

ENDLESS = 10**6  # steps; the race ends before
TRAINER = find_spec("accelerate") is not None  # without it transformers' Trainer does not start


@dataclass(frozen=True)
class Work:
    """What a contender trains.

    Attributes:
        model: ours; the others build theirs of the same shape.
        batch: windows of `model.context` tokens a step.
        device: cpu or cuda.
        precision: fp32, bf16 or fp16: the latter two under autocast.
        compiled: asked for; without, ours is as its recipe has it.
        data: packed data, the same for all.
        folder: an empty one for what it must write.
    """

    model: ModelConfig
    batch: int
    device: str
    precision: str
    compiled: bool
    data: Path
    folder: Path


def ours(turns: Turns, work: Work, recipe: str, kernels: bool = True) -> None:
    """A run as `python -m train fit --config RECIPE` makes it, of other sizes and with AdamW.

    Without kernels a masked convolution is `tril(W) @ x + b`, as plain PyTorch says it.
    """
    import yaml
    from lightning.pytorch import Callback

    from train import run
    from train.cli import find_recipe
    from train.settings import (
        BatchSettings,
        OptimizerSettings,
        Recipe,
        RunSettings,
        ScheduleSettings,
        TrainerSettings,
    )

    if not kernels:
        from arch.mixers import masked

        masked.masked_convolution = plain_convolution

    sections = yaml.safe_load(find_recipe(recipe).read_text(encoding="utf-8"))
    own = {
        name: sections.pop(name, {})
        for name in ("model", "batch", "optimizer", "schedule", "trainer")
    }
    precisions: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed"}
    quiet = {
        "data": str(work.data),
        "run": str(work.folder / "run"),
        "precision": precisions[work.precision],
        **({"compile": True} if work.compiled else {}),
        "wandb": "disabled",
        "save_steps": [],
        "save_every": None,
        "checkpoint_every": ENDLESS,
        "validate_every": ENDLESS,
        "validate_tokens": work.model.context,
    }
    accelerator = "gpu" if work.device == "cuda" else "cpu"
    place = {"accelerator": accelerator, "devices": 1, "strategy": "auto"}
    made = run.Run(
        Recipe(
            RunSettings(**{**sections, **quiet}),
            work.model,
            BatchSettings(size=work.batch),
            OptimizerSettings(name="adamw", lr=1e-3),
            ScheduleSettings(**own["schedule"]),
            TrainerSettings(**{**own["trainer"], **place, "max_steps": ENDLESS}),
        )
    )

    class Steps(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            turns.step()

    made.trainer.callbacks.append(Steps())  # pyright: ignore[reportAttributeAccessIssue]
    made.fit()


def theirs(turns: Turns, work: Work, kind: str) -> None:
    """A model under transformers' `Trainer`, or under the loop where that cannot start.

    Args:
        turns: of the race.
        work: what to train.
        kind: llama, or a mixer of the reference.
    """
    torch.manual_seed(0)
    config = work.model
    sizes = (config.vocab_size, config.context, config.d_model, config.n_layers)
    model = llama(*sizes, config.hidden_width) if kind == "llama" else ReferenceMixer(kind, *sizes)
    rows = Rows(PackedData(work.data), config.context)
    if TRAINER:
        from transformers import TrainerCallback

        class Steps(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                turns.step()

        settings: dict[str, Any] = {
            "learning_rate": 1e-3,
            "torch_compile": work.compiled,
            "use_cpu": work.device == "cpu",
            **({} if work.precision == "fp32" else {work.precision: True}),
        }
        made = trainer(model, rows, work.folder, work.batch, ENDLESS, **settings)
        made.add_callback(Steps())
        made.train()
        return
    model = model.to(work.device)
    if work.compiled:
        model.compile()
    loader = DataLoader(
        rows, work.batch, shuffle=True, drop_last=True, pin_memory=work.device == "cuda"
    )
    recipe = Recipe(lr=1e-3, steps=ENDLESS, precision=work.precision)
    train(model, _endless(loader), recipe, lambda step, loss: turns.step())


def trainer(
    model: nn.Module, rows: Any, folder: Path, batch: int, steps: int, **settings: Any
) -> Any:
    """transformers' `Trainer`, with its defaults but for what writes files and bars."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        max_steps=steps,
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    return Trainer(model=model, args=arguments, train_dataset=rows)  # pyright: ignore


def plain_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`arch.masked_conv.masked_convolution` of one triangle, without it."""
    y = torch.tril(weight) @ x
    return y if bias is None else y + bias[:, None]


class Rows(Dataset):
    """Windows of packed tokens held in memory, over and over, as transformers takes them."""

    def __init__(self, data: PackedData, length: int) -> None:
        tokens = torch.from_numpy(data.tokens("train").astype("int64").reshape(-1))
        self._windows = tokens[: len(tokens) // length * length].view(-1, length)

    def __len__(self) -> int:
        """Enough that no epoch ends during a race."""
        return ENDLESS

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """`input_ids` and `labels`, both `(T,)`; the model shifts the labels."""
        window = self._windows[number % len(self._windows)]
        return {"input_ids": window, "labels": window}


def _endless(loader: DataLoader) -> Iterator[Any]:
    while True:
        yield from loader
