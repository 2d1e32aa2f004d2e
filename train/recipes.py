"""Recipes: the YAML files that come with the project, called by their bare names."""

import difflib
from pathlib import Path

import yaml

from train.errors import RunError

FOLDER = Path(__file__).parent / "configs"


def recipes() -> dict[str, str]:
    """Every recipe's name, and the first line of its opening comment."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted(FOLDER.glob("*.yaml"))
    }


def find_recipe(name: str) -> Path:
    """A bare name means a recipe of the project, anything else a file.

    Raises:
        RunError: neither is there, or the file does not hold settings.
    """
    known = list(recipes())
    if name in known:
        return FOLDER / f"{name}.yaml"
    if Path(name).is_file():
        return _checked(Path(name))
    near = difflib.get_close_matches(Path(name).stem, known, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise RunError(
        f"--config {name}: no such recipe or file; {guess}recipes: {', '.join(known)}; "
        "or give the path of a YAML file"
    )


def _checked(path: Path) -> Path:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"--config {path}: not YAML ({reason})") from None
    if not isinstance(content, dict):
        raise RunError(f"--config {path}: holds no settings; see python -m train recipes for some")
    return path
