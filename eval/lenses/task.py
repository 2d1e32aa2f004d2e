"""Tasks of lenses: one document and its rows for each lens, checkpoint and request.

A document is `lenses/LENS-KEY.json` in the results directory: the table of what the lens found,
with provenance, prompts and request. It is written whole or not at all, before its rows, which are
derived from it; a lens that has its document is not run again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from arch.storage.files import write_text
from eval.lenses.documents import FOLDER, Document, read_document
from eval.lenses.lens import Lens, Request
from eval.lenses.table import MEASURED, Table
from eval.messages import RequestError, say_once
from eval.models.checkpoint import Checkpoint
from eval.models.corpora import corpus_hash
from eval.models.identity import CHANGED, hash_source
from eval.rows.misfits import to_json
from eval.rows.schema import SCHEMA
from eval.rows.store import Results, Row, row_key


@dataclass(frozen=True)
class LensTask:
    """A task: one lens, one checkpoint, one request.

    Attributes:
        strict: whether a lens that cannot look is an error, or is left out with a line.
    """

    lens: Lens
    checkpoint: Checkpoint
    request: Request
    strict: bool = True
    keys = ()  # its rows are made of its document, which is there or is made

    @property
    def key(self) -> str:
        """Names the question: equal questions have equal keys."""
        model, code = list(self.checkpoint.identity), hash_source(self.lens.measure)
        name = f"{self.lens.name} {code}" if code else self.lens.name  # another's code has its own
        return row_key("lens", name, model, self.request.record)

    def path(self, directory: Path) -> Path:
        """Where its document is, in a results directory."""
        return directory / FOLDER / f"{self.lens.name}-{self.key}.json"

    def run(self, results: Results) -> list[Row]:
        """Runs the lens, or reads its document: the rows.

        Raises:
            RequestError: the lens cannot look at this model or request.
        """
        if not self.path(results.directory).is_file():
            started = time.perf_counter()
            try:
                request = replace(self.request, store=results.directory)
                found = self.lens.find(self.checkpoint, request)
            except RequestError as refusal:
                if self.strict:
                    raise
                say_once(f"{self.lens.name} left out: {refusal}")
                return []
            document = self._document(found, time.perf_counter() - started)
            write_text(self.path(results.directory), to_json(document, allow_nan=False))
        document = self.read(results)
        self._refuse_other(document, results)
        return self._rows(document)

    def _refuse_other(self, document: Document, results: Results) -> None:
        """Refuses a look at a model or a corpus that has other settings or another text now."""
        settings = document["checkpoint"].get("settings_sha256")
        text, corpus = document.get("corpus_hash"), self.request.corpus
        what = CHANGED * (settings not in (None, self.checkpoint.settings_sha256))
        if text and corpus_hash(corpus) not in (None, text):
            what = f"another text of {corpus}"
        if what:
            raise RequestError(
                f"--out {results.directory}: its look of {self.lens.name} at "
                f"{self.checkpoint.path} is of {what}; give another directory"
            )

    def read(self, results: Results) -> Document:
        """The document; empty where there is none."""
        path = self.path(results.directory)
        return read_document(path) if path.is_file() else {}

    def _document(self, found: Table, seconds: float) -> Document:
        request = self.request.record
        return {
            "schema": SCHEMA,
            "lens": self.lens.name,
            "about": self.lens.about,
            "key": self.key,
            "checkpoint": self.checkpoint.provenance,
            "prompts": request.pop("prompts"),
            "request": request,
            "corpus_hash": corpus_hash(self.request.corpus),
            **found.plain(),
            "seconds": round(seconds, 4),
        }

    def _rows(self, document: Document) -> list[Row]:
        prompts = self.request.prompts
        corpus = {"corpus": document["corpus_hash"]} if document.get("corpus_hash") else {}
        tokens = [prompt["tokens"] for prompt in document["prompts"]]
        common = {
            "kind": "lens",
            "lens": self.lens.name,
            "checkpoint": self.checkpoint.provenance,
            "prompts": len(prompts),
            "prompt_kind": "/".join(sorted({prompt.kind for prompt in prompts})),
            "length": max(prompt.real for prompt in prompts),
            "texts": row_key(tokens, document["request"] | corpus)[:8],
            "look": document["key"],
        }
        rows = []
        for figure in Table.read(document).figures():
            wrong = [n for n, v in figure.items() if isinstance(v, float) and not isfinite(v)]
            if wrong:  # null in strict JSON, and the reason beside it
                reason = ", ".join(f"{name} is {figure[name]}" for name in wrong)
                figure = figure | dict.fromkeys(wrong) | {"reason": reason}
            coordinates = {name: value for name, value in figure.items() if name not in MEASURED}
            rows.append({"key": row_key(document["key"], coordinates), **common, **figure})
        return rows
