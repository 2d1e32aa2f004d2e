"""The command `recover`: the text behind tensors in a file, and how sure each token is."""

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tqdm import tqdm

from eval.commands.flags import File, Natural, Out, Part, Plugins, Words, listed
from eval.commands.result import Result, command
from eval.messages import RequestError, legible, say_once
from eval.rows.plugins import run_plugins

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from eval.captured.answer import Recovered
    from eval.captured.files.tensors import Outputs, Raw
    from eval.models.checkpoint import Checkpoint
    from eval.rows.store import Results

UNCERTAIN = 10  # positions that the terminal lists, at most


@command
def recover_file(
    file: File,
    *,
    model: str,
    tensor: Words = None,
    layer: Natural | Sequence[Natural] | None = None,
    part: Part | Literal["logits"] | None = None,
    positions: Natural | Sequence[Natural] | None = None,
    first: Natural | None = None,
    stored: Literal["fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8"] | None = None,
    scale: str | None = None,
    computed: Literal["fp32", "bf16", "fp16"] | None = None,
    solver: str | None = None,
    plugin: Plugins = (),
    truth: Words = None,
    page: str | None = None,
    seed: Natural = 0,
    corpus: str | None = None,
    verify: bool = False,
    torch_file: bool = False,
    out: Out = None,
    device: str = "auto",
) -> Result:
    """Recovers the text behind captured tensors: hidden states, or keys and values of a cache.

    A token is certain where the outputs from it on are as the answer's, to the rounding of the
    model and of the format, and no other token that was run fits as well.

    Args:
        file: safetensors, npy or npz, of tensors (T, width) or (B, T, width); of keys and values
            also (B, heads, T, width); or what an engine wrote, a file or a folder (docs/audit.md).
            Pickles are refused
        model: the model directory or hf:NAME whose outputs they are
        tensor: those to recover, by name; default: all of the file
        layer: 0 is the embedding; several are joined; default: by the tensor's name, as block.3,
            else found by trying the likeliest sites
        part: of the layer; default: with the layer
        positions: that are known, from 0; what stands at the others is not looked at; default: all
        first: position of a tensor's first row, where it does not begin the prompt; the tokens
            before it are hidden. --positions count from the prompt's beginning
        stored: the format that the numbers went through; default: found from the numbers
        scale: of numbers of 8 bits: a number, or a tensor's name; default: NAME.scale in the file
        computed: the precision in which the captured model computed; default: found by the first
            positions, if these are known
        solver: default: propose where all positions are known, else alternating
        plugin: a Python file of yours that registers more solvers (docs/extending.md), which is
            run as your own code: give only files that you trust
        truth: the texts behind the tensors, to score the answer with, one for each prompt
        page: write the answer as one HTML page, with every position
        seed: of solvers that draw at random
        corpus: whose held-out text the search guesses from; default: that of the model's training
        verify: inverts also where token ids stand in the file in clear, and says whether they agree
        torch_file: file is a capture of vLLM-Hook that torch.save wrote; tensors, numbers and texts
            alone are read, and nothing is run
        out: results directory, which keeps each tensor's answer as it is found; what is there
            already is not searched again
        device: where to compute; auto (default) takes a GPU that is in reach
    """
    from eval.captured.files.clear import compare_ids
    from eval.captured.files.recognise import read_capture
    from eval.models.checkpoint import open_model
    from eval.rows.tasks import open_results, run_tasks

    run_plugins(plugin)
    given_scale = _number(scale)
    names = None if tensor is None else listed(tensor)
    scale_name = scale if given_scale is None else None
    capture = read_capture(file, names, scale_name, layer, part, torch_file)
    held, ids = capture.outputs, capture.ids
    if given_scale is not None and not any(outputs.scaled for outputs in held.values()):
        raise RequestError(f"--scale {scale}: {file} has no numbers of 8 bits; leave it out")
    checkpoint = open_model(model, device)
    if ids is not None and not verify:
        given = {"--page": page, "--truth": truth, "--out": out}
        return _clear(file, ids, checkpoint.tokenizer, [flag for flag in given if given[flag]])
    if capture.refusal:
        raise RequestError(f"{file}: {capture.refusal}")
    layer = None if capture.named else layer
    shown = None if positions is None else listed(positions)
    arguments = {"shown": shown, "first": first, "format": stored, "computed": computed,
                 "solver": solver, "seed": seed, "corpus": corpus}  # fmt: skip
    tasks = [
        RecoverTask(
            checkpoint, name, entry, given_scale, arguments | _site(name, layer, part),
            aloud=len(held) > 1,
        )
        for name, entry in held.items()
    ]  # fmt: skip
    with open_results(out) as results:
        run_tasks(tasks, results, "recovering")
        answered, note = results.rows(), results.note if out else ""
    rows, lines = list[dict[str, Any]](), list[str]()
    for task in tasks:
        of_task = [row for row in answered if row["key"].rpartition("-")[0] == task.key]
        if truth is not None:
            _score(of_task, listed(truth), checkpoint.tokenizer)
        if ids is not None:
            compare_ids(of_task, ids)
        lines.append(_text(task.name, of_task))
        rows += of_task
    result = Result(rows, "\n\n".join(lines), note, render=_page)
    if page:
        result.notes = "\n".join(filter(None, [note, f"page: {result.page(page)}"]))
    return result


def _clear(file: str, ids: list[list[int]], tokenizer: "Tokenizer", flags: Sequence[str]) -> Result:
    """The texts of the ids that stand in a file; flags of an inversion are refused."""
    from eval.captured.files.clear import read_texts

    if flags:
        raise RequestError(
            f"{flags[0]}: the ids stand in {file}, so that nothing is inverted; add --verify"
        )
    texts = read_texts(file, ids, tokenizer)
    rows = [{"file": file, "prompt": prompt, "text": text, "tokens": ids[prompt]}
            for prompt, text in enumerate(texts)]  # fmt: skip
    said = "the ids stand in the file: no inversion is needed (--verify inverts all the same)"
    return Result(rows, "\n".join([f"{file}: {said}", *(f"  {text!r}" for text in texts)]))


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
    """

    checkpoint: "Checkpoint"
    name: str
    entry: "Outputs"
    scale: float | None
    arguments: dict[str, Any]
    aloud: bool = False

    @cached_property
    def key(self) -> str:
        """Stands for the tensor's bytes, the model and what is asked."""
        import torch

        from eval.inversion.solver import parse_solvers
        from eval.rows.store import row_key

        solver = self.arguments["solver"]
        code = parse_solvers({solver: {}})[0].code if solver else None  # of a user's own file
        held = hashlib.sha256()
        for part in self.entry.read():
            if part is not None:
                held.update(repr((part.dtype, tuple(part.shape))).encode())
                held.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        about = self.checkpoint.identity
        return row_key(
            *about, "captured", held.hexdigest(), self.scale, self.name, self.arguments, code
        )

    @property
    def keys(self) -> list[str]:
        """That of its first prompt: all its rows are written at once."""
        return [f"{self.key}-0"]

    def run(self, results: "Results") -> list[dict[str, Any]]:
        """A row for each prompt."""
        from torch import Tensor

        from eval.captured.recover import recover

        raw = self.entry.read()
        scale = self.scale if self.scale is not None and self.entry.scaled else raw.scale
        about = {"kind": "captured", "checkpoint": self.checkpoint.provenance}
        rows = []
        for prompts, kept in self._without_padding(raw):
            outputs, own = raw.outputs, scale
            if kept:
                outputs = outputs[prompts][..., kept, :]
                if isinstance(scale, Tensor) and scale.shape == raw.outputs.shape:
                    own = scale[prompts][..., kept, :]
            about_numbers = {"scale": own, "zero_point": raw.zero_point}
            found = recover(self.checkpoint, outputs, **about_numbers, **self.arguments)
            rows += [
                {"key": f"{self.key}-{number}", **about, **_row(self.name, number, found, i)}
                for i, number in enumerate(prompts or range(len(found.tokens)))
            ]
        rows.sort(key=lambda row: row["prompt"])
        if self.aloud:
            tqdm.write(legible(_text(self.name, rows)), file=sys.stderr)
        return rows

    def _without_padding(self, raw: "Raw") -> list[tuple[list[int], slice | None]]:
        """The prompts that a mask leaves the same rows of, and these rows; else all at once.

        Raises:
            RequestError: a mask of other values than 0 and 1, or one that does not leave one row
                after another.
        """
        if raw.mask is None:
            return [([], None)]
        others = [x for x in (raw.scale, raw.zero_point) if x is not None and x.numel() > 1]
        scaled = any(x is not raw.scale or x.shape != raw.outputs.shape for x in others)
        if scaled or self.arguments["shown"] is not None or self.arguments["first"] is not None:
            say_once(f"{self.name}: its attention_mask is not used, as rows are given otherwise")
            return [([], None)]
        spans: dict[tuple[int, int], list[int]] = {}
        for prompt, mask in enumerate(raw.mask.tolist()):
            kept = [t for t, value in enumerate(mask) if value == 1]
            start, count = kept[0] if kept else 0, len(kept)
            if not set(mask) <= {0, 1} or not kept or kept[-1] != start + count - 1:
                raise RequestError(
                    f"{self.name}: attention_mask of prompt {prompt}: must have 1 at one row after "
                    "another, and 0 elsewhere; leave it out of the file, and give --positions"
                )
            spans.setdefault((start, start + count), []).append(prompt)
        T = raw.mask.shape[1]
        for (start, end), prompts in spans.items():
            if (start, end) != (0, T):
                named = ", ".join(map(str, prompts[:10])) + ", ..." * (len(prompts) > 10)
                say_once(f"{self.name}: by attention_mask rows {start} to {end - 1} of {named}")
        return [(prompts, slice(*span)) for span, prompts in spans.items()]


def _page(rows: Sequence[dict[str, Any]], title: str | None) -> str:
    from eval.views.page.captured import render_captured

    return render_captured(rows, title)


def _site(name: str, layer: Any, part: str | None) -> dict[str, Any]:
    """The layer and part given, else those that a tensor's name says, as `block.3`, if any."""
    from eval.captured.files.tensors import name_site

    named = name_site(name) if layer is None else None
    if named and part in (None, named[1]):
        layer, part = named
    return {"layer": layer, "part": part}


def _number(scale: str | None) -> float | None:
    """A scale that is given as a number; None: it is a name, or none is given."""
    try:
        number = None if scale is None else float(scale)
    except ValueError:
        return None
    if number is not None and not 0 < number < math.inf:
        raise RequestError(f"--scale {scale}: give a number above 0, or a tensor's name")
    return number


def _row(name: str, prompt: int, found: "Recovered", number: int) -> dict[str, Any]:
    """What is said of a prompt of a tensor, the answer of this number."""
    from eval.rows.store import finite_or_none

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
        "alike": {str(t): tokens for t, tokens in alike.items()},
        "alike_pieces": {str(t): read for t, read in found.alike_pieces[number].items()},
        "evaluations": found.evaluations[number],
    }


def _score(rows: list[dict[str, Any]], texts: list[str], tokenizer: "Tokenizer") -> None:
    """Puts the truth beside the answers: each token right, wrong but named, or wrong."""
    if len(texts) != len(rows):
        raise RequestError(
            f"--truth: {len(texts)} texts for {len(rows)} prompts; give one for each"
        )
    for row, text in zip(rows, texts, strict=True):
        answer = row["tokens"][: min(row["left_out"], default=None)]
        true = _truth(text, answer, tokenizer)
        right = [a == b for a, b in zip(answer, true, strict=True)]
        named = [token in row["alike"].get(str(t), []) for t, token in enumerate(true)]
        row["right"], row["named"] = sum(right), sum(named)
        row["wrong"] = [t for t, good in enumerate(right) if not good]
        for grade in ("certain", "likely"):
            grades = zip(row["grades"], right, strict=False)
            row[f"false_{grade}"] = sum(name == grade and not good for name, good in grades)


def _truth(text: str, answer: list[int], tokenizer: "Tokenizer") -> list[int]:
    """The tokens of a text that is as long as the answer, read as its tokenizer reads a text.

    Special tokens that a tokenizer puts around a text may be in the answer, or not.
    """
    from eval.models.text import encode_text

    bare = encode_text(tokenizer, text, "--truth")
    whole = tokenizer.encode(text).ids
    for true in (whole, bare):
        if len(true) == len(answer):
            return true
    raise RequestError(
        f"--truth {text!r}: {len(bare)} tokens"
        + (f" ({len(whole)} with those that the tokenizer adds)" if whole != bare else "")
        + f"; the answer has {len(answer)}"
    )


def _text(name: str, rows: list[dict[str, Any]]) -> str:
    """The answers of one tensor, as a terminal shows them."""
    from eval.captured.certainty.likelihood import LIKELY
    from eval.captured.files.clear import describe

    where = f"{name}: {rows[0]['site']}, {rows[0]['format']}, by {rows[0]['solver']}"
    if rows[0]["sites_tried"]:
        best, *others = rows[0]["sites_tried"]
        where += f"; found: {best['hits']} of its first {best['tried']} tokens fit"
        if others:
            most = max(match["hits"] for match in others)
            where += f", at most {most} at {len(others)} other sites"
    lines = [where]
    for row in rows:
        lines.append(f"  {row['text']!r}"[:10_000])
        grades = row["grades"][: min(row["left_out"], default=None)]
        ratios = [ratio for ratio in row["residual_over_floor"].values() if ratio is not None]
        count, worst = len(grades), max(ratios, default=0.0)
        said = f"  {grades.count('certain')} of {count} tokens certain"
        if "certain" not in grades[:count] or grades.count("likely"):
            said += f", {grades.count('likely')} likely (p {LIKELY} or more)"
        said += f"; residual at most {worst:.3g} floors"
        if "right" in row:
            said += (
                f"; {row['right']} right, {row['named']} more named, {row['false_certain']} false"
            )
        lines.append(said)
        if "differs" in row:
            lines.append(f"    {describe(row['differs'])}")
        if tail := row["left_out"]:
            lines.append(f"    positions {_span(tail)}: no token fits; left out of the text")
        unsure = [t for t, grade in enumerate(grades) if grade == "unknown"]
        lines += [
            f"    position {t}, {row['pieces'][t]!r}: {_why(row, t)}" for t in unsure[:UNCERTAIN]
        ]
        if len(unsure) > UNCERTAIN:
            lines.append(f"    and {len(unsure) - UNCERTAIN} more; --format json has all")
    return "\n".join(lines)


def _why(row: dict[str, Any], t: int) -> str:
    """Why the token at a position is not sure."""
    if others := row["alike_pieces"].get(str(t)):
        return f"fits as well: {', '.join(map(repr, others))}"
    if (chance := row["probabilities"][t]) is not None:
        return f"no token that was run fits to rounding; p {chance:.2g}"
    return "no output from here on fits to rounding"


def _span(positions: Sequence[int]) -> str:
    """Neighbouring positions in words: `29 to 34`."""
    return f"{positions[0]} to {positions[-1]}" if len(positions) > 1 else str(positions[0])
