"""What a mixer promises, asked of a model from outside: `python -m arch check`.

Each part of a model is run on the same inputs in several ways: with other inputs from some position
on, on prefixes, and alone instead of in a batch. Whatever else it computes, the outputs before that
position must stay as they are.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from arch.config import ModelConfig
from arch.errors import ModelError, is_out_of_memory, reason
from arch.kernels.arithmetic import plain_arithmetic
from arch.mixers.base import SideBySide
from arch.model import Block, LanguageModel
from arch.pretrained.decoder import WholeLayer
from arch.storage.directory import load_model, save_model

WORK = 6e9
"""FLOP of one round of the check, about: a larger model is run on fewer positions."""
LEAST, MOST = 16, 256
"""Positions that a model is run on, if its context has as many."""
SCRAMBLED_ROWS, OWN_ROWS = 8, 4
"""Rows of the batch: for blocks with random weights, and for the model as it is."""
FEW = 8
"""Prefixes that are run where a round is not of float32 and random weights."""
CHANCE = "chance in evaluation mode"
DRAWN = 99
"""Random numbers that are left out before a part is run again, to see whether it draws any."""
PRETRAINED_POSITIONS = 16
"""Positions whose derivatives are taken in each layer of a model of transformers, at most."""
TOLERANCE = 1e-3
"""Of an output's size: what `prefix` and `step` may differ by from `forward`."""
Part = TypeVar("Part", bound=nn.Module)


@plain_arithmetic()
@torch.no_grad()
def check_causal(model: LanguageModel) -> float:
    """Refuses a model in which an output depends on a later token, another sequence, or chance.

    Looked at are the way into the first block, every block and the head, with the model's own
    weights in their precision. Then every kind of block, with random numbers added to all its
    weights, so that a gate that starts at zero is open: in float32, under bfloat16 autocast, and in
    training mode, as statistics of a batch are seen there only. Inputs are changed from up to seven
    positions on, at powers of two and beside them; prefixes of all such lengths are run alone. With
    the model's own weights these are three positions and eight prefixes. In evaluation mode each
    part is run twice, with two draws of random numbers. 256 positions are run, in wide models
    fewer. A model of transformers is run with its own weights only. The model and the
    global random state are left as they were; the caller's autocast and default precision have no
    effect.

    Not found is what moves an output by less than rounding may: half of the precision's digits, of
    the block's own share of the stream. Nor what acts at a single pair of positions between those
    that were tried, or in a longer text; on some tokens only; in numbers that are not finite; or in
    a code path that other inputs, another device or another batch takes.

    Returns:
        The largest difference found, as a fraction of what rounding may make.

    Raises:
        ModelError: the layer and mixer, the position that moved, by how much and by which other; or
            a mixer that cannot run a text shorter than the context.
    """
    generator = torch.Generator().manual_seed(0)
    with _in_evaluation(model):
        worst = _check_as_it_is(model, generator)
        for name, block in _kinds(model).items():
            worst = max(worst, _check_scrambled(name, block, model.config, generator))
    return worst


def check_promises(model: LanguageModel, tokenizer_json: str) -> Iterator[tuple[str, str]]:
    """Yields what was checked and the figure it gave, as far as all is well.

    Models of ours are checked with random weights, so that nothing is hidden by how they start; a
    model of transformers with its own, and it is not saved.

    Raises:
        ModelError: a promise that is not kept, in one line.
    """
    yield "causal", f"largest difference {check_causal(model):.2g} of what rounding may make"
    ours = type(model.config) is ModelConfig
    generator = torch.Generator().manual_seed(0)
    model = _scrambled(model, generator) if ours else model
    size = 2, min(MOST, model.config.context)
    tokens = torch.randint(model.config.vocab_size, size, generator=generator)
    tokens = tokens.to(model.embedding.weight.device)
    difference = _check_continues(model, tokens)
    yield "prefix and step", f"equal forward, largest difference {difference:.2g} of an output"
    difference = _check_jacobian(model, generator)
    yield "Jacobian", f"largest entry above the diagonal {difference:.2g} of those on and below"
    if ours:
        yield "save and load", _check_saving(model, tokens, tokenizer_json)


def _check_as_it_is(model: LanguageModel, generator: torch.Generator) -> float:
    """All parts with the model's own weights, each on the outputs of the one before."""
    T = _positions(model.config, len(model.blocks), OWN_ROWS)
    size, lengths = (OWN_ROWS, T), _spread(_lengths(T), FEW)
    tokens = torch.randint(model.config.vocab_size, size, generator=generator)
    x, worst = model.embed(tokens.to(model.embedding.weight.device)), 0.0
    parts: dict[str, Callable[[Tensor], Tensor]]
    parts = {"layer 0 (the embedding)": model.with_positions}
    parts |= {_layer_name(model, layer): block for layer, block in enumerate(model.blocks, 1)}
    eps, how = torch.finfo(x.dtype).eps, "with its own weights"
    for name, part in parts.items():
        moved, x = _check_part(name, part, x, lengths, eps, how)
        worst = max(worst, moved)
    logits = _check_part("the head", model.logits, x[:, :LEAST], lengths, eps, how)  # they are wide
    return max(worst, logits[0])


def _check_scrambled(
    name: str, block: Block, config: ModelConfig, generator: torch.Generator
) -> float:
    """A block with random weights, in two precisions and in training mode."""
    T = _positions(config, 1, SCRAMBLED_ROWS)
    lengths, block = _lengths(T), _scrambled(block, generator)
    device = next((weight.device for weight in block.parameters()), torch.device("cpu"))
    x = torch.randn(SCRAMBLED_ROWS, T, config.d_model, generator=generator).to(device)
    how, eps = "with random weights, in", torch.finfo(torch.float32).eps
    exact, _ = _check_part(name, block, x, lengths, eps, f"{how} float32")
    trained, _ = _check_part(name, block.train(), x, (), eps, f"{how} training mode")
    block.eval()
    with torch.autocast(device.type, torch.bfloat16):
        try:
            block(x)
        except (RuntimeError, TypeError) as error:  # it cannot be trained in this precision either
            if is_out_of_memory(error):
                raise
            return max(exact, trained)
        eps, few = torch.finfo(torch.bfloat16).eps, _spread(lengths, FEW)
        half, _ = _check_part(name, block, x, few, eps, f"{how} bfloat16")
    return max(exact, trained, half)


def _check_part(
    name: str,
    part: Callable[[Tensor], Tensor],
    x: Tensor,
    lengths: Sequence[int],
    eps: float,
    how: str,
) -> tuple[float, Tensor]:
    """Compares a part's outputs of x `(K, T, D)` with those of changed inputs, and of prefixes.

    Args:
        lengths: of the prefixes; none in training mode, in which a part may draw random numbers.

    Returns:
        The largest difference, as a fraction of what rounding may make, and the outputs.
    """
    y, (K, T) = _run(name, part, x), x.shape[:2]
    cuts = _spread([n for n in _lengths(T) if n < T], K - 1)
    cuts += [T] * (K - len(cuts))  # of the last rows nothing is changed
    others = "another sequence of the batch"

    def moves() -> Iterator[tuple[str, int, Tensor]]:
        """Yields what differs, in which row, and by how much each output before it moves."""
        if lengths:
            again = _size(_run(name, part, x, drawn=DRAWN) - y)
            yield from ((CHANCE, row, again[row]) for row in range(K))
        later = torch.arange(T, device=x.device) >= torch.tensor(cuts, device=x.device)[:, None]
        found = _size(_run(name, part, torch.where(later[..., None], x.roll(1, 0), x)) - y)
        for row in sorted(range(K), key=lambda row: (cuts[row] < T, row)):
            seen = others if cuts[row] == T else f"a change from position {cuts[row]} on"
            yield seen, row, found[row, : cuts[row]]
        for n in sorted({n for n in lengths if n <= T}, reverse=True):
            seen = others if n == T else f"the length of the text, {n} or {T} positions,"
            yield seen, 0, _size(_run(name, part, x[:1, :n], T) - y[:1, :n])[0]

    added = y - x if x.shape == y.shape else y
    least = torch.finfo(torch.float32).tiny
    limit, worst = eps**0.5 * _size(added) + 4 * eps * _size(y) + least, 0.0
    for seen, row, moved in moves():
        fraction = moved / limit[row, : len(moved)]
        if (fraction > 1).any():
            position = int((fraction > 1).nonzero()[0])
            wrong = "random" if seen == CHANCE else "not causal"
            raise ModelError(
                f"{name} is {wrong}: {seen} moves the output at position {position} by "
                f"{float(moved[position]):.2g}, of {float(_size(y).max()):.2g} ({how}); an output "
                "may depend on its own and earlier positions, and in training mode on chance"
            )
        worst = max(worst, float(fraction.max()))
    return worst, y


def _run(
    name: str, part: Callable[[Tensor], Tensor], x: Tensor, longer: int = 0, drawn: int = 0
) -> Tensor:
    """The part's outputs; each run draws the same random numbers, or those after `drawn` of them.

    Raises:
        ModelError: it cannot be run, or not on so few positions, though on `longer` inputs.
    """
    try:
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            for device in {torch.device("cpu"), x.device}:
                torch.rand(drawn, device=device)
            return part(x)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        few = f"runs {longer} positions and not" if longer else "cannot run"
        rule = "; a token mixer takes any length up to the context" if longer else ""
        raise ModelError(f"{name} {few} {x.shape[1]}: {reason(error, 300)}{rule}") from error


def _size(x: Tensor) -> Tensor:
    """The largest finite number of each position's features, `(K, T)`."""
    return x.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1)


def _positions(config: ModelConfig, blocks: int, rows: int) -> int:
    """Positions of a round that passes so many blocks with so many rows."""
    D, T = config.d_model, min(MOST, config.context)
    while T > LEAST and blocks * D * (24 * D + 4 * T) * 3 * rows * T > WORK:
        T //= 2
    return T


def _lengths(T: int) -> list[int]:
    """The powers of two and those beside them, up to T, and T itself."""
    lengths = {2**k + d for k in range(T.bit_length()) for d in (-1, 0, 1)}
    return sorted(n for n in lengths | {T} if 0 < n <= T)


def _spread(values: list[int], most: int) -> list[int]:
    """At most so many of the values, evenly chosen, the last among them."""
    if len(values) <= most:
        return values
    return [values[round((i + 1) * len(values) / most) - 1] for i in range(most)]


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """The model is in evaluation mode, and then as it was, part by part."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def _kinds(model: LanguageModel) -> dict[str, Block]:
    """The first block of each kind by its name, of a model that is built from a configuration."""
    found: dict[str, tuple[str, Block]] = {}
    if type(model.config) is ModelConfig:
        for layer, block in enumerate(model.blocks, 1):
            entry = model.config.mixers[(layer - 1) % len(model.config.mixers)]
            found.setdefault(entry, (_layer_name(model, layer), block))  # pyright: ignore
    return dict(found.values())


def _layer_name(model: LanguageModel, layer: int) -> str:
    """The name of a block in errors, counted as sites are: `layer 1 (Flat)`."""
    mixer = model.blocks[layer - 1].token_mixer
    mixer = mixer.layer if isinstance(mixer, WholeLayer) else mixer
    parts = mixer.mixers if isinstance(mixer, SideBySide) else [mixer]
    return f"layer {layer} ({'+'.join(type(part).__name__ for part in parts)})"


def _scrambled(module: Part, generator: torch.Generator) -> Part:
    """A copy in float32 with random numbers of their usual size added to all weights."""
    copied = copy.deepcopy(module).float()
    with torch.no_grad():
        for weight in copied.parameters():
            std = weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.5
            weight += std * torch.randn(weight.shape, generator=generator).to(weight.device)
    return copied


@torch.no_grad()
def _check_continues(model: LanguageModel, tokens: Tensor) -> float:
    """Compares `prefix`, in pieces, and `step`, of two candidates each, with whole sequences.

    Each goes on from a state that it has gone on from before, which must be as it was.

    Returns:
        The largest difference, as a fraction of the largest output.

    Raises:
        ModelError: naming the layer, the method and the position.
    """
    x, worst, T = model.with_positions(model.embed(tokens)), 0.0, tokens.shape[1]
    for layer in range(1, len(model.blocks) + 1):
        block: Block = model.blocks[layer - 1]  # pyright: ignore[reportAssignmentType]
        y = block(x)
        for cut in sorted({1, T // 2, T - 1} - {0, T}):
            first, state = block.prefix(x[:, :1])
            if cut > 1:
                block.prefix(x[:, 1:cut], state)
                second, state = block.prefix(x[:, 1:cut], state)
                first = torch.cat([first, second], dim=1)
            candidates = x[:, cut:].repeat_interleave(2, 0)
            candidates[1::2] = candidates[1::2].flip(-1)  # the second is another one
            block.step(candidates, state)
            outputs = torch.cat([first, block.step(candidates, state)[::2]], dim=1)
            differences = (outputs - y).abs().amax((0, 2)) / y.abs().max()
            largest = float(differences.max())
            if not largest <= TOLERANCE:
                position = int(differences.argmax())
                raise ModelError(
                    f"{_layer_name(model, layer)}: {'step' if position >= cut else 'prefix'} "
                    f"differs from forward at position {position} by {largest:.2g} of the largest "
                    f"output, {cut} positions remembered; the two must agree, also where the state "
                    "was gone on from before: change no state in place"
                )
            worst = max(worst, largest)
        x = y
    return worst


def _check_jacobian(model: LanguageModel, generator: torch.Generator) -> float:
    """The derivative of a position's output with respect to a later input is zero."""
    found, T = _kinds(model), min(MOST, model.config.context)
    if not found:
        found = {_layer_name(model, i): block for i, block in enumerate(model.blocks, 1)}
        T = min(PRETRAINED_POSITIONS, T)
    weight, worst = model.embedding.weight, 0.0
    x, along = torch.randn(2, 1, T, model.config.d_model, generator=generator).to(weight)
    x.requires_grad_()
    for name, block in found.items():
        outputs = (block(x) * along).sum(-1)[0]
        for t in range(T - 1):
            (gradient,) = torch.autograd.grad(outputs[t], x, retain_graph=True)
            size = gradient[0].abs().amax(-1)
            above = float(size[t + 1 :].max() / size.max())
            if not above <= TOLERANCE:
                later = t + 1 + int(size[t + 1 :].argmax())
                raise ModelError(
                    f"{name} is not causal: its output at position {t} has a derivative with "
                    f"respect to the input at position {later}, {above:.2g} of the largest"
                )
            worst = max(worst, above)
    return worst


@torch.no_grad()
def _check_saving(model: LanguageModel, tokens: Tensor, tokenizer_json: str) -> str:
    """The model gives the same logits when it is saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_model(Path(folder) / "model", model, tokenizer_json, {})
        again = load_model(path, tokens.device, trust_code=True).model  # it runs already
    before = model(tokens)
    try:
        after = again(tokens)
    except RuntimeError as error:  # a tensor that no file has is on no device
        raise ModelError(
            f"the model does not run when it is saved and loaded: {reason(error)}"
        ) from error
    if not torch.equal(before, after):
        difference = float((before - after).abs().max())
        raise ModelError(
            f"the logits differ by {difference:.2g} when the model is saved and loaded; what they "
            "depend on must be a parameter or a persistent buffer"
        )
    return f"the same logits, {before.numel():,} numbers"
