"""Questions of the explorer's page: checked, asked by the functions of `eval`, written as commands.

The page names models, solvers and lenses by names that the server gave it, never by a path.
"""

import shlex
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.storage.directory import read_meta
from arch.storage.runs import BEST, run_of
from eval.commands.bits import bits
from eval.commands.invert import invert
from eval.commands.lens import lens
from eval.drawing.markup import visible
from eval.explore.answers import information, shown_answer
from eval.inversion.solver import solvers
from eval.lenses.lens import lenses
from eval.messages import RequestError
from eval.models.checkpoint import PRETRAINED, Checkpoint, find_models, open_model
from eval.models.corpora import common_corpus
from eval.models.identity import list_written
from eval.models.text import random_prompts, text_prompts
from eval.rows.progress import Progress, watching
from eval.rows.store import finite_or_none
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.commands.result import Result

LETTERS, TOKENS, NOISE = 2000, 256, 16.0
"""Of a sentence, and added to outputs, at most."""
COMMANDS: dict[str, Callable[..., "Result"]] = {"invert": invert, "bits": bits, "lens": lens}
OPEN, MODELS = 4, 2
"""Models in memory at once, and asked side by side."""
SUGGESTED = ("propose", "sweep", "alternating", "adam")
"""Solvers, of which the first that can answer is asked when none is chosen; `propose` of outputs
without noise alone: its first token within the limit need not be the nearest."""
PRECISION = {"noise": [0.25, 1.0, 4.0], "quantisers": ["int8", "int4", "int2"], "draws": 4}
"""What bits are measured at, and at the noise that the page asks for."""

Emit = Callable[[dict[str, Any]], None]


class Library:
    """The models that the page may ask, by name; a few of them are kept open.

    Attributes:
        paths: where each model is: the newest run first, and of a run its last step.
        runs: the names of its models, by run.
        corpus: whose text solvers guess from, tokens are counted in and lenses are fitted on; None
            for the data that the models were trained on.
        trust_code: whether model directories may name mixers outside this project.

    Raises:
        RequestError: no models in the sources, which are model directories, runs or `hf:` names.
    """

    def __init__(
        self, sources: Sequence[str], corpus: str | None, device: str, trust_code: bool = False
    ) -> None:
        self.corpus, self.device, self.trust_code = corpus, device, trust_code
        self.paths: dict[str, str] = {}
        self.runs: dict[str, list[str]] = {}
        pretrained = [source for source in sources if source.startswith(PRETRAINED)]
        found = list[tuple[Path, Path, str]]()
        for run, paths in _by_run(source for source in sources if source not in pretrained):
            for path in paths:
                meta = read_meta(path / "meta.json")
                found.append((run, path, f"{meta['name']}, step {meta.get('step', 0)}"))
        count = Counter(name for _, _, name in found)
        for run, path, name in found:
            name = f"{name} ({path})" if count[name] > 1 else name
            self.paths[name] = str(path)
            self.runs.setdefault(str(run), []).append(name)
        self.paths |= {name: name for name in pretrained}
        self.runs |= {"pretrained": pretrained} if pretrained else {}
        if not self.paths:
            raise RequestError(f"{' '.join(sources)}: no model directories; `make demo` makes some")
        self._open: OrderedDict[str, tuple[Any, Checkpoint]] = OrderedDict()
        self._lock = threading.Lock()

    def checkpoint(self, name: str) -> Checkpoint:
        """The model of that name, opened when it is first asked for, or its files are new."""
        path, trust = self.paths[name], self.trust_code
        with self._lock:
            now = list_written(Path(path.removeprefix(PRETRAINED)))
            if name not in self._open or self._open[name][0] != now:
                self._open.pop(name, None)
                while len(self._open) >= OPEN:  # before another one takes memory
                    self._open.popitem(last=False)
                self._open[name] = now, open_model(path, self.device, trust_code=trust)
            self._open.move_to_end(name)
            return self._open[name][1]

    @property
    def suggested(self) -> list[str]:
        """The first model of the newest run, and its last; the last alone where names differ.

        Unrelated models, which may lie in one folder, need not read a sentence alike.
        """
        newest = next(iter(self.runs.values()))
        first, last = newest[-1], newest[0]
        alike = first.partition(", step ")[0] == last.partition(", step ")[0]
        return [first, last] if alike and first != last else [last]

    def warm(self) -> None:
        """Asks the suggested models a small question, which loads libraries and fits read-backs."""
        for name in self.suggested:
            tokenizer = self.checkpoint(name).tokenizer
            (prompt,) = random_prompts(tokenizer, 1, 2)  # of its own letters
            given = {"text": tokenizer.decode(list(prompt.tokens)), "models": [name]}
            with suppress(RequestError):  # the page says it of what is typed there
                self.question(given).run(lambda event: None, lambda: None)

    def about(self) -> dict[str, Any]:
        """Models, solvers, lenses and limits, for the page."""
        return {
            "runs": [{"run": run, "models": names} for run, names in self.runs.items()],
            "suggested": self.suggested,
            "solvers": [{"name": n, "text": entry.text} for n, entry in solvers().items()],
            "lenses": [{"name": n, "title": entry.title or n} for n, entry in lenses().items()],
            "limits": {"letters": LETTERS, "noise": NOISE},
        }

    def question(self, given: Any) -> "Question":
        """Checks what a browser sent.

        Raises:
            RequestError: it is not of the form of a `Question`, beyond the limits, or not to be
                asked of its models.
        """
        if not isinstance(given, dict):
            raise RequestError("the question is no JSON object")
        question = Question(self)
        for known in fields(Question)[1:]:
            value, default = given.get(known.name), getattr(question, known.name)
            if value is None:
                continue
            kind = {"layer": int, "noise": int | float}.get(known.name, type(default))
            if not isinstance(value, kind) or isinstance(value, bool):
                name = getattr(kind, "__name__", "number")
                raise RequestError(f"{known.name}: {str(value)[:80]!r} is not {name}")
            setattr(question, known.name, value)
        question.check()
        return question


@dataclass
class Question:
    """One question of the page.

    Attributes:
        kind: the function of `eval` that is called.
        models: their names in the library; none: the first.
        layer: None for the last.
        hidden: the positions whose outputs are not kept.
        solvers: for `invert`; none: one that can answer.
        noise: added to the outputs, in units of their root mean square.
        lens: for `lens`.
    """

    library: Library
    kind: str = "invert"
    models: list[str] = field(default_factory=list)
    text: str = ""
    layer: int | None = None
    hidden: list[int] = field(default_factory=list)
    solvers: list[str] = field(default_factory=list)
    noise: float = 0.0
    lens: str = "logit"

    def check(self) -> None:
        """Opens the models and reads the sentence.

        Raises:
            RequestError: a name that is not here; a sentence that is empty, too long, or read
                otherwise by the other model; a layer that one has not; nothing shown; models of
                different data.
        """
        self._check_names()
        if not self.text.strip():
            raise RequestError("type a sentence first")
        if len(self.text) > LETTERS:
            raise RequestError(f"text: {len(self.text)} letters; give {LETTERS} at most")
        if not 0 <= self.noise <= NOISE:
            raise RequestError(f"noise: {self.noise} is not between 0 and {NOISE:g}")
        for checkpoint in self.checkpoints:
            self._check_model(checkpoint)
        last = len(self.tokens) - 1
        for position in self.hidden:
            if type(position) is not int or not 0 <= position <= last:
                known_to = f"there is no token {str(position)[:80]}; give numbers from 0 to {last}"
                raise RequestError(f"hidden: {known_to}")
        if len(set(self.hidden)) > last:
            raise RequestError("hidden: all tokens are; show one at least")
        _ = self.corpus, self.pieces  # models of different data are refused here

    def _check_names(self) -> None:
        """Refuses names that are not here; each name counts once, and no model is the first."""
        known = list(self.library.paths)
        self.models = list(dict.fromkeys(map(str, self.models))) or known[:1]
        self.solvers = list(dict.fromkeys(map(str, self.solvers)))
        for name, values, allowed in (
            ("kind", [self.kind], COMMANDS),
            ("models", self.models, known),
            ("solvers", self.solvers, solvers()),
            ("lens", [self.lens], lenses()),
        ):
            for value in values:
                if value not in allowed:
                    raise RequestError(f"{name}: there is no {value[:80]!r} here")
        if len(self.models) > MODELS:
            raise RequestError(f"models: {len(self.models)} chosen; {MODELS} at most")

    def _check_model(self, checkpoint: Checkpoint) -> None:
        """Refuses a sentence or a layer that does not fit a model."""
        most, tokens = min(TOKENS, checkpoint.config.context), self._tokens(checkpoint)
        if len(tokens) > most:
            raise RequestError(f"the sentence has {len(tokens)} tokens; give {most} at most")
        if tokens != self.tokens:
            raise RequestError(
                "models: their tokenizers cut the sentence differently; ask them one by one"
            )
        if self.layer is not None:
            checkpoint.check_layer(self.layer)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The models that are asked, open."""
        return [self.library.checkpoint(name) for name in self.models]

    @cached_property
    def corpus(self) -> str:
        """The one that is given, or that the models were trained on."""
        return self.library.corpus or common_corpus(self.checkpoints)[0]

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the sentence."""
        return self._tokens(self.checkpoints[0])

    @cached_property
    def pieces(self) -> list[str]:
        """The texts of the sentence's tokens, as the page shows them."""
        return [visible(piece) for piece in self.checkpoints[0].pieces(list(self.tokens))]

    def _tokens(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        return text_prompts([self.text], checkpoint)[0].tokens

    @cached_property
    def shown(self) -> Slice:
        """What is kept of the layer."""
        length = len(self.tokens)
        return Slice.of([t for t in range(length) if t not in self.hidden], length)

    @cached_property
    def refusals(self) -> dict[str, str | None]:
        """Why each solver cannot be asked this, or None."""
        length = len(self.tokens)
        return {
            name: solver.refusal(self.shown, length, True) for name, solver in solvers().items()
        }

    @cached_property
    def chosen_solvers(self) -> list[str]:
        """The solvers that answer: those that were chosen, or the first suggested that can."""
        suggested = SUGGESTED[bool(self.noise) :]
        return self.solvers or [name for name in suggested if not self.refusals[name]][:1]

    def look(self) -> dict[str, Any]:
        """What the page shows before anything is computed."""
        return {
            "tokens": self.pieces,
            "layers": min(checkpoint.config.n_layers for checkpoint in self.checkpoints),
            "slice": str(self.shown),
            "refusals": self.refusals,
            "asked": self.chosen_solvers,
            "corpus": self.corpus,
            "command": self.command(),
            "python": self.python(),
        }

    def arguments(self) -> dict[str, Any]:
        """Arguments of the function of `eval` that is called."""
        layer = self.layer
        if layer is None:
            layer = min(checkpoint.config.n_layers for checkpoint in self.checkpoints)
        shared: dict[str, Any] = {"text": self.text, "corpus": self.corpus}
        if self.library.device != "auto":
            shared["device"] = self.library.device
        if self.kind == "lens":
            return {"lens": self.lens, **shared}
        if self.kind == "bits":
            distances = [d for d in (0, 1, 2, 4, 8) if d < len(self.tokens)]
            noise = sorted({*PRECISION["noise"], *([self.noise] if self.noise else [])})
            return {"layers": layer, "distances": distances, **PRECISION, "noise": noise, **shared}
        noise = {"noise": self.noise} if self.noise else {}
        chosen = {"layers": layer, "slices": str(self.shown), "solvers": self.chosen_solvers}
        return chosen | noise | shared

    def command(self) -> str:
        """The question as a command for a terminal."""
        words = [self.library.paths[name] for name in self.models]
        for name, value in (self.arguments() | {"out": "results/explore"}).items():
            values = [str(word) for word in value] if isinstance(value, list) else [str(value)]
            if values[0].startswith("-"):  # a flag, but for the sign of equality
                words.append(f"--{name}={values[0]}")
            else:
                words += [f"--{name}", *values]
        words += ["--trust-code"] * self.library.trust_code
        return shlex.join(["python", "-m", "eval", self.kind, *words])

    def python(self) -> str:
        """The question as a call in Python."""
        paths = [self.library.paths[name] for name in self.models]
        trust = {"trust_code": True} if self.library.trust_code else {}
        lines = [f"    {name}={value!r}," for name, value in (self.arguments() | trust).items()]
        call = "\n".join([f"result = {self.kind}(", f"    {paths!r},", *lines, ")"])
        return f"from eval import {self.kind}\n\n{call}\nresult.show()\n"

    def run(self, emit: Emit, check: Callable[[], None]) -> "Result | None":
        """Asks; everything that came of it as one result, None if all refused.

        Args:
            emit: takes what the page is to show, as it comes.
            check: called often; what it raises ends the work.
        """
        whole: Result | None = None
        for number, checkpoint in enumerate(self.checkpoints):
            for solver in self.chosen_solvers if self.kind == "invert" else [""]:
                check()
                coordinates = {"model": number, "solver": solver}
                emit({"type": "begin", **coordinates})
                arguments = self.arguments() | ({"solvers": solver} if solver else {})
                try:
                    with watching(partial(self._seen, coordinates, checkpoint, emit, check)):
                        result = COMMANDS[self.kind](checkpoint, **arguments)
                except RequestError as error:
                    emit({"type": "refused", **coordinates, "text": str(error)})
                    continue
                for row in result.rows if solver else ():
                    emit({"type": "answer", **coordinates} | shown_answer(row))
                if whole is None:
                    whole = result
                else:
                    whole.rows += result.rows
                    whole.documents += result.documents
        return whole

    def _seen(
        self,
        coordinates: dict[str, Any],
        checkpoint: Checkpoint,
        emit: Emit,
        check: Callable[[], None],
        progress: Progress,
    ) -> None:
        check()
        if progress.row:
            emit({"type": "bits", **coordinates} | information(progress.row))
        elif progress.tokens is not None:
            tokens, settled = progress.tokens[0].tolist(), progress.settled
            margins = progress.margins
            found = {
                "found": [visible(piece) for piece in checkpoint.pieces(tokens)],
                "right": [a == b for a, b in zip(tokens, self.tokens, strict=False)],
                "settled": None if settled is None else settled[0].tolist(),
                "margin": None if margins is None else finite_or_none(float(margins[0])),
            }
            emit({"type": "tokens", **coordinates} | found)


def _by_run(sources: Iterable[str]) -> list[tuple[Path, list[Path]]]:
    """Model directories by the run that they are of: the newest run first, its last step first."""
    runs: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(found for source in sources for found in find_models(source)):
        runs.setdefault(run_of(path), []).append(path)

    def newest(run: Path) -> float:
        return max((path / "meta.json").stat().st_mtime for path in runs[run])

    def last_first(run: Path) -> list[Path]:  # RUN/best behind the last step
        best = [path for path in runs[run] if path.name == BEST]
        steps = [path for path in runs[run][::-1] if path not in best]
        return [*steps[:1], *best, *steps[1:]]

    return [(run, last_first(run)) for run in sorted(runs, key=newest, reverse=True)]
