"""The command `recover`: the text behind tensors in a file, and how sure each token is."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from eval.commands.flags import CapturedPart, File, Natural, Out, Plugins, Words, listed
from eval.commands.result import Result, command
from eval.messages import RequestError, say
from eval.rows.plugins import run_plugins

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from eval.captured.files.kinds.kind import Capture
    from eval.captured.task import RecoverTask
    from eval.models.checkpoint import Checkpoint
    from eval.rows.store import Row

Format: TypeAlias = Literal[
    "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8", "uint8"
]
"""Of stored numbers: `eval.captured.files.stored.FORMATS`."""


@command
def recover_file(
    file: File,
    *,
    model: str,
    tensor: Words = None,
    layer: Natural | Sequence[Natural] | None = None,
    part: CapturedPart | None = None,
    positions: Natural | Sequence[Natural] | None = None,
    first: Natural | None = None,
    stored: Format | None = None,
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

    A token is certain if a captured output at its position or later equals the answer's, up to the
    rounding of the model and of the format, and no other token that was run fits as well.

    Args:
        file: safetensors, npy or npz, of tensors (T, width) or (B, T, width); of keys and values
            also (B, heads, T, width); or what an engine wrote, a file or a folder (docs/audit.md).
            Pickles are refused, but for --torch-file
        model: whose outputs they are: a model directory, or a run (RUN, RUN@STEP, RUN@best),
            remnant:NAME or hf:NAME
        tensor: names of the tensors to recover; default: all of the file
        layer: layer of the tensor; 0 is the embedding; more than one: layers of a stack, or of
            tensors that name them, recovered together; default: by the tensor's name, as in
            block.3, else the likeliest sites are tried
        part: part of the layer; default: by the tensor's name, else each part is tried
        positions: positions that are known, from 0; the others are searched for; default: all
        first: position of the tensor's first row in the prompt; the tokens before it are hidden;
            --positions count from the prompt's beginning
        stored: format that the numbers were stored in, also of bits that stand as integers;
            default: found from the numbers
        scale: scale of 8-bit numbers: a number, or a tensor's name; default: the tensor NAME.scale
            of the file
        computed: precision in which the captured model computed; default: found from the first
            positions; if these are hidden, fp32 or that of the format, whichever proves more
        solver: solver that searches; default: propose where all positions are known, else
            alternating
        truth: true texts, one for each prompt, to score the answer
        page: HTML file to write, with the answer and every position
        seed: seed of solvers that draw at random
        corpus: source of held-out text that the search guesses from; default: the data that the
            model was trained on
        verify: invert the tensors also where the file holds the token ids, and say whether they
            agree
        torch_file: read a file that torch.save wrote: tensors, numbers and texts alone; nothing in
            it is run
        out: results directory; each tensor's answer is written when it is found, and is not
            searched again
    """
    from eval.captured.files.recognise import read_capture
    from eval.models.checkpoint import open_model
    from eval.rows.tasks import open_results, run_tasks

    run_plugins(plugin)
    number = _number(scale)
    names = None if tensor is None else listed(tensor)
    scale_name = scale if number is None else None
    capture = read_capture(file, names, scale_name, layer, part, torch_file, stored)
    if scale is not None and not any(entry.scaled for entry in capture.outputs.values()):
        raise RequestError(f"--scale {scale}: {file} has no numbers of 8 bits; leave it out")
    checkpoint, ids = open_model(model, device), capture.ids
    if ids is not None and not verify:
        given = {
            "--tensor": tensor, "--layer": layer, "--part": part, "--positions": positions,
            "--first": first, "--stored": stored, "--scale": scale, "--computed": computed,
            "--solver": solver, "--truth": truth, "--page": page, "--out": out,
        }  # fmt: skip
        flags = [flag for flag, value in given.items() if value is not None]
        fix = "leave it out" + ", or add --verify" * (not capture.refusal)
        return _clear(file, ids, checkpoint.tokenizer, flags, fix)
    if first and ids is not None:
        raise RequestError(f"--first {first}: the ids in {file} begin with its row 0; leave it out")
    if capture.refusal:
        raise RequestError(f"{file}: {capture.refusal}")
    if verify and ids is None:
        raise RequestError(f"--verify: no ids that are known stand in {file}; leave it out")
    shown = None if positions is None else listed(positions)
    arguments = {"shown": shown, "first": first, "format": stored, "computed": computed,
                 "solver": solver, "seed": seed, "corpus": corpus}  # fmt: skip
    tasks = _plan(checkpoint, capture, layer, part, number, arguments, names is not None)
    with open_results(out) as results:
        run_tasks(tasks, results, "recovering")
        left_out = [f"left out: {line}" for task in tasks for line in task.refusals]
        if len(left_out) == len(tasks):  # one line for all: they are of one file
            raise RequestError(tasks[0].refusals[0])
        for line in left_out:
            say(line)
        rows, note = results.rows(), results.note if out else ""
    texts = None if truth is None else listed(truth)
    try:
        result = _describe(tasks, rows, texts, ids, checkpoint.tokenizer)
        paged = f"page: {result.page(page)}" if page else ""
    except (RequestError, OSError):
        if out is None:  # a wrong --truth or --page must not lose the answer
            print(_describe(tasks, rows, None, ids, checkpoint.tokenizer), file=sys.stderr)
        raise
    result.notes = "\n".join(filter(None, [note, paged]))
    return result


def _plan(
    checkpoint: "Checkpoint",
    capture: "Capture",
    layer: int | Sequence[int] | None,
    part: str | None,
    scale: float | None,
    arguments: dict[str, Any],
    chosen: bool,
) -> "list[RecoverTask]":
    """A task for each tensor, or for each stack of tensors of several layers.

    Where they were not chosen by name, one that is refused does not end the work on others.
    """
    from eval.captured.files.axes import check_numbers, choose_tensors
    from eval.captured.task import RecoverTask

    layers = [] if layer is None else sorted({int(number) for number in listed(layer)})
    tensors = choose_tensors(capture.outputs, layers, part)
    if tensors is capture.outputs and not chosen:
        check_numbers(capture.outputs, layers)
    layer = None if not layers else layers if len(layers) > 1 else layers[0]
    return [
        RecoverTask(
            checkpoint, name, outputs, scale, arguments | _site(name, layer, part),
            aloud=len(tensors) > 1, optional=len(tensors) > 1 and not chosen,
        )
        for name, outputs in tensors.items()
    ]  # fmt: skip


def _describe(
    tasks: "list[RecoverTask]",
    answered: "list[Row]",
    texts: list[str] | None,
    ids: list[list[int]] | None,
    tokenizer: "Tokenizer",
) -> Result:
    """The tasks' rows in their order, with the truth and the ids of the file beside them."""
    from eval.captured.files.clear import compare_ids
    from eval.captured.task import describe_rows

    rows, lines = list[dict[str, Any]](), list[str]()
    for task in tasks:
        of_task = [row for row in answered if row["key"].rpartition("-")[0] == task.key]
        if task.refusals:
            lines += [f"left out: {line}" for line in task.refusals]
            continue
        if texts is not None:
            _score(of_task, texts, tokenizer)
        if ids is not None:
            compare_ids(of_task, ids)
        lines.append(describe_rows(task.name, of_task))
        rows += of_task
    return Result(rows, "\n\n".join(lines))


def _clear(
    file: str, ids: list[list[int]], tokenizer: "Tokenizer", flags: Sequence[str], fix: str
) -> Result:
    """The texts of the ids that stand in a file; flags of an inversion are refused, with a fix."""
    from eval.captured.files.clear import read_texts

    if flags:
        raise RequestError(
            f"{flags[0]}: the ids stand in {file}, so that nothing is inverted; {fix}"
        )
    texts = read_texts(file, ids, tokenizer)
    rows = [{"file": file, "prompt": prompt, "text": text, "tokens": ids[prompt]}
            for prompt, text in enumerate(texts)]  # fmt: skip
    said = "it holds token ids, which --model's tokenizer spells; --verify inverts its tensors, too"
    return Result(rows, "\n".join([f"{file}: {said}", *(f"  {text!r}" for text in texts)]))


def _site(name: str, layer: Any, part: str | None) -> dict[str, Any]:
    """The layer and part given, and what of them a tensor's name says, as `block.3`."""
    from eval.captured.files.tensors import name_site

    named = name_site(name)
    if named and part in (None, named[1]):
        layer, part = named[0] if layer is None else layer, named[1]
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


def _score(rows: list[dict[str, Any]], texts: list[str], tokenizer: "Tokenizer") -> None:
    """Puts the truth beside the answers: each token right, wrong but named, or wrong."""
    count = len(rows) + len(rows[0].get("refused", ()))
    if len(texts) != count:
        raise RequestError(f"--truth: {len(texts)} texts for {count} prompts; give one for each")
    for row in rows:
        text = texts[row["prompt"]]
        answer = row["tokens"][: min(row["left_out"], default=None)]
        true = _truth(text, answer, tokenizer) if answer else []
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
    from eval.models.pieces import encode_text

    bare = encode_text(tokenizer, text, "--truth")
    whole = tokenizer.encode(text).ids
    for true in (whole, bare):
        if len(true) == len(answer):
            return true
    raise RequestError(
        f"--truth {text!r}: {len(bare)} tokens"
        + (f" ({len(whole)} with those that the tokenizer adds)" if whole != bare else "")
        + f"; the answer has {len(answer)}, and begins with "
        + repr(tokenizer.decode(answer[:4], skip_special_tokens=False))
        + "; give the text of all of them, special ones as they are spelt"
    )
