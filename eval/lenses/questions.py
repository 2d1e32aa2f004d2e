"""What lenses are asked of checkpoints: one document and its rows for each lens and checkpoint.

A document is `lenses/LENS-KEY.json` in the results directory: everything that the lens found, with
provenance, prompts and what was asked. It is written whole or not at all, before its rows, which
can be made of it again; what has a document is not looked at twice.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eval.checkpoints import Checkpoint
from eval.files import write_text
from eval.lenses.documents import FOLDER
from eval.lenses.lens import Finding, Lens, Request
from eval.results import SCHEMA, Row, row_key


@dataclass(frozen=True)
class Look:
    """A task: one lens, one checkpoint, one request."""

    lens: Lens
    checkpoint: Checkpoint
    request: Request

    @property
    def key(self) -> str:
        """Names what is asked: equal questions have equal keys."""
        provenance = self.checkpoint.provenance
        model = [provenance[field] for field in ("name", "step", "weights_sha256")]
        return row_key("lens", self.lens.name, model, asdict(self.request))

    def path(self, directory: Path) -> Path:
        """Where its document is, in a results directory."""
        return directory / FOLDER / f"{self.lens.name}-{self.key}.json"

    def run(self, directory: Path) -> tuple[dict[str, Any], list[Row]]:
        """Looks, or reads what was found before: the document, kept in a directory, and its rows.

        Raises:
            RequestError: the lens cannot look at this model, or at what is asked.
        """
        path = self.path(directory)
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
        else:
            started = time.perf_counter()
            finding = self.lens.find(self.checkpoint, self.request)
            document = self._document(finding, time.perf_counter() - started)
            write_text(path, json.dumps(document, allow_nan=False))
        return document, self._rows(document)

    def _document(self, finding: Finding, seconds: float) -> dict[str, Any]:
        request = asdict(self.request)
        prompts = [
            prompt | {"pieces": self.checkpoint.pieces(list(prompt["tokens"]))}
            for prompt in request.pop("prompts")
        ]
        return {
            "schema": SCHEMA,
            "lens": self.lens.name,
            "about": self.lens.about,
            "key": self.key,
            "checkpoint": self.checkpoint.provenance,
            "prompts": prompts,
            "request": request,
            "arrays": {name: array.plain() for name, array in finding.arrays.items()},
            "figures": [_finite(figure) for figure in finding.figures],
            "notes": finding.notes,
            "seconds": round(seconds, 4),
        }

    def _rows(self, document: dict[str, Any]) -> list[Row]:
        prompts = self.request.prompts
        common = {
            "kind": "lens",
            "lens": self.lens.name,
            "checkpoint": self.checkpoint.provenance,
            "prompts": len(prompts),
            "prompt_kind": "/".join(sorted({prompt.kind for prompt in prompts})),
            "length": max(prompt.real for prompt in prompts),
            "look": document["key"],
        }
        return [
            {"key": row_key(document["key"], _where(figure)), **common, **figure}
            for figure in document["figures"]
        ]


def _finite(figure: dict[str, Any]) -> dict[str, Any]:
    """With None for what is no number, as in strict JSON, and the reason beside it."""
    wrong = [n for n, v in figure.items() if isinstance(v, float) and not math.isfinite(v)]
    reason = ", ".join(f"{name} is {figure[name]}" for name in wrong)
    return figure | dict.fromkeys(wrong) | ({"reason": reason} if wrong else {})


def _where(figure: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in figure.items() if k not in ("value", "low", "high", "n", "reason")}
