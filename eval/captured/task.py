"""A captured tensor as a task, whose prompts become rows; and how a terminal shows these."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.captured.answer import Recovered
from eval.captured.captured import LARGEST_NUMBER
from eval.captured.certainty.likelihood import LIKELY_PROBABILITY
from eval.captured.files.axes import UNITS, JoinedOutputs, find_order, spread, take_layer
from eval.captured.files.clear import describe
from eval.captured.files.stored import view_bits
from eval.captured.files.tensors import Outputs, Raw
from eval.captured.locate import Match
from eval.captured.recover import recover
from eval.captured.search.scores import recover_scores
from eval.drawing.tables import chance_text, number_text
from eval.inversion.solver import parse_solvers
from eval.messages import ArgumentError, RequestError, first_of, legible, say, say_once, span
from eval.models.checkpoint import Checkpoint
from eval.rows.store import Results, finite_or_none, row_key

UNCERTAIN, LETTERS = 10, 10_000  # positions, and of a text, that the terminal shows, at most
FLAGS = {
    "outputs": "", "shown": "--positions", "format": "--stored", "first": "--first",
    "computed": "--computed", "layer": "--layer", "part": "--part",
    "solver": "--solver",
}  # fmt: skip
"""The command's flags for arguments of `recover`; none for outputs, which their tensor names."""


@dataclass(frozen=True)
class RecoverTask:
    """The prompts of one captured tensor; `eval.rows.tasks.Task`.

    Attributes:
        checkpoint: whose outputs it holds.
        name: of the tensor.
        entry: reads it.
        scale: given as a number, of tensors of 8 bits.
        arguments: of `recover`.
        aloud: whether the answer is also said on stderr as it is found, as others are to come.
        optional: whether the others go on where this one is refused.
        refusals: why it was refused, where it is optional.
    """

    checkpoint: Checkpoint
    name: str
    entry: Outputs | JoinedOutputs
    scale: float | None
    arguments: dict[str, Any]
    aloud: bool = False
    optional: bool = False
    refusals: list[str] = field(default_factory=list)

    @cached_property
    def key(self) -> str:
        """Stands for the tensor's bytes, the model and what is asked."""
        solver = self.arguments["solver"]
        code = parse_solvers({solver: {}})[0].code if solver else None  # of a user's own file
        held = hashlib.sha256()
        with suppress(RequestError):  # of a tensor that cannot be read, which `run` says
            for part in self.entry.read():
                if isinstance(part, Tensor):
                    held.update(repr((part.dtype, tuple(part.shape))).encode())
                    held.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        about = self.checkpoint.identity
        return row_key(
            *about, "captured", held.hexdigest(), self.scale, self.name, self.arguments, code
        )

    @property
    def keys(self) -> list[str]:
        """That of its first row: all its rows are written at once."""
        return [f"{self.key}-0"]

    def run(self, results: Results) -> list[dict[str, Any]]:
        """A row for each prompt."""
        about = {"kind": "captured", "checkpoint": self.checkpoint.provenance}
        lines = dict[int, str]()  # by prompts that have no answer, though others have
        try:
            with _named(self.name, "; --tensor takes others alone" * self.aloud):
                rows = [
                    {**about, **_row(self.name, number, found, i), "padding": padding}
                    for prompts, padding, found in self._answers(self.entry.read(), lines)
                    for i, number in enumerate(prompts or range(len(found.tokens)))
                ]
        except RequestError as error:
            if not self.optional:
                raise
            self.refusals.append(str(error))
            return []
        rows.sort(key=lambda row: row["prompt"])
        refused = {str(prompt): lines[prompt] for prompt in sorted(lines)}
        more = {"refused": refused} if refused else {}
        rows = [{"key": f"{self.key}-{n}", **row, **more} for n, row in enumerate(rows)]
        if self.aloud:
            tqdm.write(legible(describe_rows(self.name, rows)), file=sys.stderr)
        return rows

    def _answers(
        self, raw: Raw, lines: dict[int, str]
    ) -> Iterator[tuple[list[int], list[int], Recovered]]:
        """The answers, each with the numbers of its prompts, and those of its rows of padding.

        The list of prompt numbers is empty where one answer covers all prompts. Prompts with
        certain tokens tell the site and the precision of those that follow. Prompts that are
        refused where others are answered get their line in `lines`.
        """
        if raw.ids is not None:
            yield [], [], self._recover_scores(raw.outputs, raw.ids)
            return
        raw = raw._replace(outputs=view_bits(raw.outputs, self.arguments["format"]))
        if self.scale is not None and self.entry.scaled:
            if raw.scale is not None:
                raise RequestError(
                    f"--scale {self.scale:g}: the file holds a scale of {self.name}; leave it out"
                )
            raw = raw._replace(scale=self.scale)
        raw = self._of_prompts(raw)
        told, matches, refused = dict[str, Any](), list[Match](), list[tuple[int, RequestError]]()
        groups: list[tuple[list[int], slice | None, RequestError | None]]
        groups = [(*group, None) for group in self._without_padding(raw, lines)]
        answered = False
        for prompts, rows, before in groups:
            try:
                if before and not told:
                    raise before
                found = self._recover_group(raw, prompts, rows, told)
            except RequestError as error:
                if told and len(prompts) > 1:
                    groups += [([prompt], rows, error) for prompt in prompts]
                elif not told and not before:  # once more, when others have told the site
                    groups.append((prompts, rows, error))
                else:
                    refused += [(prompt, error) for prompt in prompts or [0]]
                continue
            answered = True
            if found.proven and not told:
                told, matches = {"computed": found.computed}, found.matches
                told |= {"layer": matches[0].layer, "part": matches[0].part} if matches else {}
            T = raw.outputs.shape[-2]
            padding = sorted({*range(T)} - {*range(T)[rows]}) if rows else []
            yield prompts, padding, replace(found, matches=found.matches or matches)
        for prompt, error in refused:
            if not answered:
                raise error
            lines[prompt] = str(error)
            say_once(f"left out: {error}; or leave the prompt out, by an attention_mask of 0")

    def _recover_group(
        self, raw: Raw, prompts: list[int], rows: slice | None, told: dict[str, Any]
    ) -> Recovered:
        """The answer for prompts that a mask leaves the same rows of; all, where it does not say.

        `told` are arguments of `recover` that others of the tensor have told.
        """
        numbers = {name: getattr(raw, name) for name in UNITS}
        if rows is None:
            return recover(self.checkpoint, **numbers, **self.arguments)
        numbers |= {
            name: held[prompts][..., rows, :]
            for name, held in numbers.items()
            if isinstance(held, Tensor) and held.shape == raw.outputs.shape
        }
        if len(prompts) < len(raw.outputs) or rows != slice(0, raw.outputs.shape[-2]):
            say(
                f"{self.name}: by attention_mask rows {rows.start} to {rows.stop - 1} of prompts "
                f"{first_of(prompts)}; the next lines count these prompts and rows from 0"
            )
            say_once.cache_clear()  # in the words of an earlier group they are of other rows
        name = f"{self.name}: of prompts {first_of(prompts)}"
        name += ", counted from 0" * (len(prompts) > 1)
        with _named(self.name if len(prompts) == len(raw.outputs) else name, ""):
            found = recover(self.checkpoint, **numbers, **self.arguments | told)
        if rows.start and not found.proven:
            say_once(
                f"{self.name}: no token is certain behind {rows.start} rows of padding: did the "
                "positions count them? give the model position_ids, as attention_mask.cumsum("
                "-1) - 1, or each prompt alone. Or did it read the padding as tokens? leave "
                "attention_mask out of the file"
            )
        return found

    def _of_prompts(self, raw: Raw) -> Raw:
        """Outputs that have a mask, of the layer asked for: `(B, T, C)` or `(B, heads, T, width)`.

        A mask is of prompts, and not of layers. A scale and a zero point have a number for each.
        """
        if (mask := raw.mask) is None:
            return raw
        model = self.checkpoint.model
        layer, part = self.arguments["layer"], self.arguments["part"]
        raw = take_layer(model, raw, layer, part)
        shape = raw.outputs.shape
        order = find_order(model, shape, layer, part)
        if order is None and len(shape) == 4 and mask.shape == shape[:2] != shape[::2]:
            order = "BTHd"  # by the mask, where no site tells the width
        raw = spread(raw, order)
        units = {name: unit for name in UNITS if (unit := getattr(raw, name)) is not None}
        if len(shape) == 2 or order in ("HTd", "THd"):  # of one prompt, without its axis
            units, order = {name: unit[None] for name, unit in units.items()}, f"B{order}"
        if order == "BTHd":
            units = {name: unit.transpose(1, 2) for name, unit in units.items()}
        return raw._replace(**units, mask=mask.reshape(-1, mask.shape[-1]))

    def _recover_scores(self, values: Tensor, ids: Tensor) -> Recovered:
        """The prompt behind the scores of a few tokens at each position.

        Raises:
            RequestError: an argument that only outputs of a site have.
        """
        given = {name for name, value in self.arguments.items() if value is not None}
        if others := sorted(FLAGS[name] for name in given - {"corpus", "seed"}):
            raise RequestError(f"{', '.join(others)}: {self.name} holds scores; leave it out")
        return recover_scores(self.checkpoint, ids, values, corpus=self.arguments["corpus"])

    def _without_padding(
        self, raw: Raw, lines: dict[int, str]
    ) -> list[tuple[list[int], slice | None]]:
        """The prompts that a mask leaves the same rows of, and these rows, the most rows first.

        All at once where no mask is used. Prompts of which it leaves none get a line in `lines`;
        those with numbers that are not finite are asked apart, as they are refused.

        Raises:
            RequestError: a mask of other values than 0 and 1, or one that does not leave one row
                after another.
        """
        if raw.mask is None:
            return [([], None)]
        axes = raw.outputs.shape
        if raw.mask.shape != (axes[0], axes[-2]):
            raise RequestError(
                f"{self.name}: attention_mask {tuple(raw.mask.shape)} of outputs {tuple(axes)}; "
                "must be (B, T): give one of that shape, or leave it out of the file"
            )
        if self.arguments["shown"] is not None or self.arguments["first"] is not None:
            say_once(
                f"{self.name}: its attention_mask is not used, as --positions or --first is given"
            )
            return [([], None)]
        spans: dict[tuple[int, int, bool], list[int]] = {}
        for prompt, mask in enumerate(raw.mask.tolist()):
            own = [t for t, value in enumerate(mask) if value == 1]
            start, count = own[0] if own else 0, len(own)
            if set(mask) == {0} and raw.mask.any():
                lines[prompt] = f"{self.name}: of prompts {prompt}: left out by attention_mask"
                say_once(lines[prompt])
                continue
            if not set(mask) <= {0, 1} or not own or own[-1] != start + count - 1:
                raise RequestError(
                    f"{self.name}: attention_mask of prompt {prompt}: must have 1 at one row after "
                    "another, and 0 elsewhere; leave it out of the file, and give --positions"
                )
            rows = raw.outputs[prompt][..., start : start + count, :].float()
            unreadable = not bool((rows.abs() < LARGEST_NUMBER).all())
            spans.setdefault((start, start + count, unreadable), []).append(prompt)
        longest = sorted(spans, key=lambda rows: (rows[0] - rows[1], rows[2]))
        return [(spans[rows], slice(*rows[:2])) for rows in longest]


@contextmanager
def _named(name: str, more: str) -> Iterator[None]:
    """Has a refusal name the tensor of a file, and flags in the place of arguments."""
    try:
        yield
    except ArgumentError as error:
        flag = FLAGS.get(error.argument)
        said = error.named(flag) if flag else error.said if flag == "" else str(error)
        raise RequestError(f"{name}: {said}{more}") from None
    except RequestError as error:
        prefix = "" if str(error).startswith(f"{name}: ") else f"{name}: "
        raise RequestError(f"{prefix}{error}{more}") from None


def _row(name: str, prompt: int, found: Recovered, number: int) -> dict[str, Any]:
    """What is said of a prompt of a tensor, the answer of this number."""
    ratio = map(finite_or_none, (found.residual[number] / found.floor[number]).tolist())
    alike = found.alike[number]
    return {
        "tensor": name,
        "prompt": prompt,
        "site": found.site,
        "sites_tried": [match._asdict() for match in found.matches],
        "format": found.format,
        "computed": found.computed,
        "solver": found.solver,
        "text": found.texts[number],
        "tokens": found.tokens[number].tolist(),
        "pieces": found.pieces[number],
        "certificates": found.certificates[number],
        "grades": found.grades[number],
        "probabilities": found.probabilities[number],
        "left_out": found.left_out[number],
        "residual_over_floor": dict(zip(map(str, found.positions), ratio, strict=True)),
        "elsewhere": found.elsewhere,
        "relative_residual": finite_or_none(float(found.relative_residual[number].median())),
        "alike": {str(t): tokens for t, tokens in alike.items()},
        "alike_pieces": {str(t): read for t, read in found.alike_pieces[number].items()},
        "evaluations": found.evaluations[number],
    }


def describe_rows(name: str, rows: list[dict[str, Any]]) -> str:
    """The answers of one tensor, as a terminal shows them."""
    sites = ", ".join(dict.fromkeys(row["site"] for row in rows))
    where = f"{name}: {sites}, {rows[0]['format']}, by {rows[0]['solver']}"
    if rows[0]["sites_tried"]:
        best, *others = rows[0]["sites_tried"]
        found = "the nearest, as no token fits at any"
        if best["hits"]:
            found = f"{best['hits']} of its first {best['tried']} tokens fit"
        elif not best["tried"]:
            found = "by mean and variance alone, as the first row is hidden"
        where += f"; found: {found}"
        if best["hits"] and others:
            most = max(match["hits"] for match in others)
            where += f", at most {most} at {len(others)} other sites"
    said = {row["prompt"]: _describe_prompt(row) for row in rows}
    for prompt, line in rows[0].get("refused", {}).items():
        said[int(prompt)] = [f"  prompt {prompt} has no text: {line}"]
    return "\n".join([where, *(line for prompt in sorted(said) for line in said[prompt])])


def _describe_prompt(row: dict[str, Any]) -> list[str]:
    """The text of one prompt, how sure it is, and what is not."""
    text = repr(row["text"])
    lines = [f"  {text[:LETTERS]}"]
    if len(text) > LETTERS:
        lines.append(f"    and {len(text) - LETTERS:,} letters more; --format json has all")
    lines.append(f"  {_count_grades(row)}")
    if "differs" in row:
        lines.append(f"    {describe(row['differs'], row['uncaptured'])}")
    if tail := row["left_out"]:
        lines.append(f"    positions {span(tail)}: no token fits; left out of the text")
    unsure = [t for t, grade in enumerate(_grades(row)) if grade == "unknown"]
    lines += [f"    position {t}, {row['pieces'][t]!r}: {_why(row, t)}" for t in unsure[:UNCERTAIN]]
    if len(unsure) > UNCERTAIN:
        lines.append(f"    and {len(unsure) - UNCERTAIN} more; --format json has all")
    return lines


def _grades(row: dict[str, Any]) -> list[str]:
    """Those of the tokens in the text of a prompt."""
    return row["grades"][: min(row["left_out"], default=None)]


def _count_grades(row: dict[str, Any]) -> str:
    """How many tokens of a prompt are certain and likely, and how near its outputs are."""
    grades = _grades(row)
    ratios = [
        ratio
        for t, ratio in row["residual_over_floor"].items()
        if ratio is not None and int(t) < len(grades)
    ]
    said = f"{grades.count('certain')} of {len(grades)} tokens certain"
    if "certain" not in grades or grades.count("likely"):
        said += f", {grades.count('likely')} likely (p {LIKELY_PROBABILITY} or more)"
    said += f"; residual at most {max(ratios, default=0.0):.3g} floors"
    is_noisy = row["relative_residual"] and grades.count("likely")
    if "certain" not in grades and is_noisy and not row.get("elsewhere"):
        said += (
            f", half of the outputs {number_text(100 * row['relative_residual'])} % or more of"
            " their length off: noise, a coarse format, or other weights"
        )
    if "right" in row:
        said += f"; {row['right']} right, {row['named']} more named, {row['false_certain']} false"
    return said


def _why(row: dict[str, Any], t: int) -> str:
    """Why the token at a position is not sure."""
    if others := row["alike_pieces"].get(str(t)):
        return f"fits as well: {', '.join(map(repr, others))}"
    if (chance := row["probabilities"][t]) is not None:
        ratio = row["residual_over_floor"].get(str(t))
        said = "no token that was run fits to rounding"
        if ratio is not None and ratio <= 1:
            said = "it is no farther off than rounding, but that proves nothing here"
        return f"{said}; p {chance_text(chance, 2, LIKELY_PROBABILITY)}"
    return "no output from here on fits to rounding"
