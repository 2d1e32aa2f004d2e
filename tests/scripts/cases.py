"""What tests of experiments share."""

from pathlib import Path
from typing import Any

import yaml

from scripts import experiment


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
