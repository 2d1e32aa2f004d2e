"""What the experiments share: registrations, rows, noise, and passages of held-out text."""

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn.functional import cross_entropy

from arch import LanguageModel
from eval.measures.bits.measure import Passage
from eval.models.text import HeldOutText, inside_stories

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "experiments"
LOSS_WINDOWS = 200, 128
"""Windows of held-out text whose loss is measured, and their tokens."""


def read_design(name: str) -> dict[str, Any]:
    """What an experiment's registration says of its models and measures."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))["design"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def add_rows(path: Path, *rows: dict[str, Any]) -> None:
    """Adds rows to a file of JSON lines, all at once."""
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def read_stored(path: Path) -> list[dict[str, Any]]:
    """The rows that `store` has written beside a registration."""
    import pandas

    return [json.loads(row) for row in pandas.read_parquet(path).row]


def rounded(values: Tensor) -> list[float]:
    """Figures as a row has them."""
    return [round(value, 5) for value in values.tolist()]


def rms(vectors: Tensor) -> Tensor:
    """The root mean square of each vector, `(..., 1)`."""
    return vectors.square().mean(-1, keepdim=True).sqrt()


def add_noise(vectors: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """With normal noise, in units of each vector's root mean square; a size of 0 draws nothing."""
    if not size:
        return vectors
    drawn = torch.randn(vectors.shape, generator=generator)
    return vectors + size * rms(vectors) * drawn


def commonest(text: HeldOutText, count: int) -> Tensor:
    """The commonest tokens of 65,536 for fitting, `(count,)`."""
    counts = torch.bincount(text.windows("fitting", 65_536, 1, least=1).flatten())
    return counts.argsort(descending=True, stable=True)[:count].sort().values


def choose_passages(
    text: HeldOutText, candidates: Tensor, positions: tuple[int, int], count: int, after: int,
    size: int = 1,
) -> list[Passage]:  # fmt: skip
    """Passages from inside stories, whose tokens asked about differ.

    Args:
        candidates: the tokens that may be asked about.
        positions: of the first passage's token and of the last one's; the others lie between.
        after: tokens behind those asked about.
        size: how many tokens in a row are asked about; the first of them differ.
    """
    first, last = positions
    allowed, chosen = set(candidates.tolist()), list[Passage]()
    for prompt in inside_stories(text, last + size + after):
        token, *others = prompt.tokens[last : last + size]
        is_new = all(token != passage.truth for passage in chosen)
        if is_new and {token, *others} <= allowed:
            position = round(first + (last - first) * len(chosen) / (count - 1))
            chosen.append(Passage(prompt.index, prompt.tokens[last - position :], position))
        if len(chosen) == count:
            return chosen
    raise SystemExit(f"only {len(chosen)} passages; {count} are asked for")


@torch.no_grad()
def held_out_nats(model: LanguageModel, text: HeldOutText) -> float:
    """The loss of held-out text, nats a token."""
    windows = text.windows("evaluation", *LOSS_WINDOWS)
    logits = torch.cat([model(part[:, :-1]) for part in windows.split(20)])
    return float(cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))
