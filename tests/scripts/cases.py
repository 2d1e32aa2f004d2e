"""What tests of experiments share."""

from pathlib import Path
from typing import Any

import yaml

from scripts import experiment

FIT = (
    "--config demo --model.context 32 --model.d_model 16 --model.n_layers 1 --model.vocab_size 300 "
    "--batch.size 2 --trainer.max_steps 2 --schedule.warmup_steps 1 --sample_prompts [] "
    "--save_steps [1]"
)
"""Flags of a training of two steps."""


def written(
    folder: Path, monkeypatch: Any, name: str, design: dict[str, Any], hypotheses: list[Any]
) -> None:
    """Writes a registration into a folder, which takes the place of that of all experiments."""
    said = {"says": "So.", "confirmed": "Yes.", "refuted": "No."}
    about = dict.fromkeys(("title", "question", "background", "analysis"), "Of it.")
    plain = {"name": name, **about, "design": design}
    plain["hypotheses"] = [
        {"id": f"H{n}", **said, **each} for n, each in enumerate(hypotheses, start=1)
    ]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(plain))
    monkeypatch.setattr(experiment, "FOLDER", folder)
