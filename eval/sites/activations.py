"""Outputs of a model's sites for texts, batch by batch.

    for batch in activations("runs/flat/models/step-020000", texts, sites=["block.1", "mixer.2"]):
        batch.outputs["block.1"]  # (B, T, D)

Only one batch is in memory at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from arch.kernels.arithmetic import plain_arithmetic
from arch.storage.files import write_file
from eval.messages import ArgumentError, RequestError
from eval.models.checkpoint import Checkpoint, open_models
from eval.models.memory import rows_at_once
from eval.models.pieces import encode_text
from eval.sites.circuit import Circuit, join
from eval.sites.site import read_sites

if TYPE_CHECKING:
    Model = str | Path | Checkpoint

FILE = "text-{}.safetensors"
"""The name of a text's file, with its number."""


@dataclass(frozen=True)
class Activations:
    """Outputs of sites for B texts; behind a text's own tokens all is zero.

    Attributes:
        tokens: ids, `(B, T)`.
        lengths: tokens of each text, `(B,)`.
        outputs: of each site by its name, as "block.1", `(B, T, width)`, in float32 at least.
    """

    tokens: Tensor
    lengths: Tensor
    outputs: dict[str, Tensor]


def activations(
    model: "Model",
    texts: str | Iterable[str],
    sites: "Sequence[str | int] | str | int" = "last",
    *,
    device: str = "auto",
    batch_size: int | None = None,
    out: str | Path | None = None,
) -> Iterator[Activations]:
    """Yields the outputs of sites for texts, in the order of the texts.

    Args:
        model: a model directory, a run (RUN, RUN@STEP, RUN@best), `remnant:NAME`, `hf:NAME`, or an
            open model.
        texts: one, or any number of them, without end too.
        sites: names as "block.3", "mixer.2", "stream.1" (part and layer; layer 0 is the
            embedding), "block.1+4" (two layers joined), or a layer's number for its block; all
            blocks by "all", or "last".
        device: where to compute; auto takes a GPU that is in reach.
        batch_size: texts of a batch; None: as many as the device's memory bears.
        out: a directory into which each text is written before its batch is yielded, as vLLM does:
            `text-N.safetensors` with `hidden_states`, `(T, sites, width)`, and `token_ids`, `(T,)`
            (https://github.com/vllm-project/vllm, `example_hidden_states_connector.py`). Sites are
            then single blocks, in the order of their layers, and the directory has no such files
            yet. None: nothing is written.

    Raises:
        RequestError: texts under names, or none; no site, one that does not exist, or cannot be
            written; a batch of less than one text; a directory with files of an earlier capture, an
            empty text, or one that is longer than the context; those about a text are raised when
            its batch is reached, as is a batch that is reached under other patches than the call
            was made under.
        OSError: the directory cannot be written.
        ModelError: the model cannot be opened.
    """
    if isinstance(texts, Mapping):
        raise ArgumentError("texts", "holds texts under names; give a text, or a list of texts")
    is_read = hasattr(texts, "__iter__") or hasattr(texts, "__getitem__")  # as a Dataset of torch
    if isinstance(texts, bytes) or not is_read:
        raise ArgumentError("texts", f"a {type(texts).__name__}; give a text, or a list of texts")
    if batch_size is not None and not (isinstance(batch_size, Integral) and batch_size > 0):
        raise ArgumentError("batch_size", "is not a whole number of at least 1", batch_size)
    words = [sites] if isinstance(sites, str | int) else list(sites)
    if not words:
        raise ArgumentError("sites", "the list is empty; give one value, or leave it out")
    (checkpoint,) = open_models(model, device)
    circuits = read_sites(checkpoint, words)
    size = batch_size or rows_at_once(checkpoint.model, checkpoint.config.context, gradients=False)
    given = iter([texts] if isinstance(texts, str) else texts)
    batches = _batches(checkpoint, given, circuits, size, checkpoint.weights)
    if out is None:
        return batches
    if other := [name for name in circuits if "+" in name or not name.startswith("block.")]:
        raise ArgumentError(
            "out",
            f"{', '.join(other)}: files hold outputs of single blocks, as block.1; leave the "
            "others out",
        )
    if earlier := next(Path(out).glob(FILE.format("*")), None):
        raise ArgumentError(
            "out",
            f"holds {earlier.name} of an earlier capture; give another directory, or delete its "
            f"{FILE.format('*')}",
            out,
        )
    Path(out).mkdir(parents=True, exist_ok=True)
    return _written(batches, Path(out))


def _written(batches: Iterator[Activations], out: Path) -> Iterator[Activations]:
    """The batches, each of whose texts is in a file of its own by then."""
    from safetensors.torch import save

    number = 0
    for batch in batches:
        names = sorted(batch.outputs, key=lambda name: int(name.rpartition(".")[2]))
        stack = torch.stack([batch.outputs[name] for name in names], dim=2)
        for tokens, states, T in zip(batch.tokens, stack, batch.lengths.tolist(), strict=True):
            held = {"hidden_states": states[:T], "token_ids": tokens[:T]}
            content = save({name: part.contiguous().cpu() for name, part in held.items()})
            write_file(out / FILE.format(number), content, flush=False)  # it can be made again
            number += 1
        yield batch


def _batches(
    checkpoint: Checkpoint,
    texts: Iterator[str],
    circuits: dict[str, Circuit],
    size: int,
    weights: str | None,
) -> Iterator[Activations]:
    device = checkpoint.model.embedding.weight.device
    by_part: dict[str, dict[str, Circuit]] = {}
    for name, circuit in circuits.items():
        by_part.setdefault(circuit.part, {})[name] = circuit
    while batch := list(islice(texts, size)):
        if checkpoint.weights != weights:
            raise RequestError(
                "activations: the patches are others than where they were asked for; take all "
                "batches in one block, as by list(activations(...))"
            )
        encoded = [encode_text(checkpoint.tokenizer, text, "text") for text in batch]
        for text, ids in zip(batch, encoded, strict=True):
            if not ids:
                raise RequestError(f"text {text!r}: there is no token in it; leave it out")
            if len(ids) > (context := checkpoint.config.context):
                raise RequestError(
                    f"text {text!r:.50}: {len(ids)} tokens, the context of {checkpoint.path} is "
                    f"{context}; give a shorter one"
                )
        lengths = torch.tensor([len(ids) for ids in encoded], device=device)
        rows = [torch.tensor(ids, device=device) for ids in encoded]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        inside = torch.arange(tokens.shape[1], device=device) < lengths[:, None]
        outputs = {}
        for named in by_part.values():
            whole, cut = join(list(named.values()))
            with plain_arithmetic():
                parts = cut(whole.of_tokens(tokens))
            held = (p.masked_fill(~inside[..., None], 0) for p in parts)
            outputs |= dict(zip(named, held, strict=True))
        yield Activations(tokens, lengths, {name: outputs[name] for name in circuits})
