"""Tokens from outputs that a caller captured, anywhere: no truth is known.

    outputs = transformers_model(**inputs, output_hidden_states=True).hidden_states[15]
    print(recover("hf:HuggingFaceTB/SmolLM2-135M", outputs, layer=15))

How far rounding moves an output is measured twice: before the search on background text at the same
site, and after it on the answer's own tokens, which decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eval import RequestError
from eval.captures import open_site
from eval.circuit import Circuit, uncertified
from eval.inversion.guesses import open_readbacks
from eval.inversion.problem import ACCEPT, Problem, capture
from eval.inversion.solver import ask_solver, parse_solvers
from eval.models import Checkpoint, open_models
from eval.recovery import Slice
from eval.text import choose_corpus, held_out_text

if TYPE_CHECKING:
    from eval.captures import Model

ROUNDS = 2  # searches: the second with limits measured on the first one's answers
UNSURE = "?"


@dataclass(frozen=True)
class Recovered:
    """The tokens of B prompts, up to the last position shown, and how sure they are.

    Attributes:
        tokens: `(B, T)`.
        texts: of each prompt.
        pieces: how each token reads on its own, by prompt.
        residual: distance of the answer's outputs from those given, at each position shown,
            `(B, S)`.
        floor: distance that rounding alone makes there, `(B, S)`: of the answer's own tokens.
        certificates: of each prompt and position: "residual" (what is shown from there on is as the
            answer's, to rounding), "enumerated" (and no other token's is), or None.
        solver: that was asked.
        evaluations: tokens sent through the model for each prompt.
    """

    tokens: Tensor
    texts: list[str]
    pieces: list[list[str]]
    residual: Tensor
    floor: Tensor
    certificates: list[list[str | None]]
    solver: str
    evaluations: list[int]

    def __str__(self) -> str:
        """A line for each prompt; a token that nothing certifies stands between question marks."""
        return "\n".join(
            "".join(
                piece if sure else f"{UNSURE}{piece}{UNSURE}"
                for piece, sure in zip(pieces, certificates, strict=True)
            )
            for pieces, certificates in zip(self.pieces, self.certificates, strict=True)
        )


def recover(
    model: "Model",
    outputs: Tensor,
    *,
    layer: int | Sequence[int],
    part: str = "block",
    shown: str | Sequence[int] | None = None,
    solver: str | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    corpus: str | None = None,
    device: str = "auto",
) -> Recovered:
    """Recovers the tokens behind the outputs of one site.

    Args:
        model: a model directory, `hf:` and a pretrained model's name, or an open model.
        outputs: of the site, `(T, width)`, or `(B, T, width)` for prompts of one length; what
            stands at positions that are not shown is not looked at.
        layer: whose outputs they are: 0 (the embedding) to the number of blocks, as the list
            `hidden_states` of transformers counts, but for its last entry, which is behind the
            final norm; several are joined along the channels.
        part: block (the stream after it), mixer or stream.
        shown: positions that are shown, or a slice as "[:, 3:, :]"; None: all.
        solver: one of `python -m eval solvers`; None: `propose` where all positions are shown, else
            `alternating`.
        settings: of the solver.
        seed: of solvers that draw at random.
        corpus: whose held-out text the solver guesses from; None: that of the model's training.
        device: where to compute; auto takes a GPU that is in reach.

    Raises:
        RequestError: outputs of another shape or width, that are not finite, or longer than the
            context; a site or slice that does not exist; a solver that cannot be asked this.
        ModelError: the model cannot be opened.
    """
    (checkpoint,) = open_models(model, device)
    circuit = open_site(checkpoint, [layer] if isinstance(layer, int) else list(layer), part)
    outputs = _checked(outputs, circuit)
    B, T, _ = outputs.shape
    visible = _slice(shown, T)
    visible.channels(circuit.width)
    target, positions = visible.select(outputs), visible.positions(T)
    if not target.isfinite().all():
        raise RequestError("outputs: not finite at a position shown; leave it out of `shown`")
    T = positions[-1] + 1  # no output shown tells of later tokens
    visible = Slice.of(positions, T, visible.low, visible.high)
    name = solver or ("alternating" if visible.hidden(T) else "propose")
    (asked,) = parse_solvers({name: settings or {}})
    if refusal := asked.refusal(visible, T, causal=True):
        raise RequestError(f"solver {name}: {refusal}")
    source = choose_corpus([checkpoint], corpus)
    share = _floor_share(checkpoint, circuit, source, visible, T)
    stored = _rounding(target)
    floor = share * target.norm(dim=-1) + stored
    limit, noise = ACCEPT * floor, torch.zeros_like(floor)
    problem = Problem(
        circuit, visible, T, target, floor, limit, noise,
        readbacks=lambda circuits: open_readbacks(checkpoint, source, circuits),
    )  # fmt: skip
    answers, rows = {}, list(range(B))
    tokens = torch.zeros(B, T, dtype=torch.long, device=target.device)
    evaluations = [0] * B
    for _ in range(ROUNDS):
        chance = [torch.Generator().manual_seed(seed) for _ in rows]
        (found,) = ask_solver(asked, [problem.of(rows)], chance)
        answers |= dict(zip(rows, found, strict=True))
        for row, one in zip(rows, found, strict=True):
            tokens[row] = one.tokens
            evaluations[row] += one.evaluations
        ((_, rounding),) = capture([circuit], tokens)
        floor = visible.select(rounding).norm(dim=-1) + stored
        residual = problem.distances(circuit.of_tokens(tokens))
        within = residual <= ACCEPT * floor
        # a wrong token that only the first, wider limit let through is searched for once more
        loose = ~within.all(dim=1) & (residual <= problem.limit).all(dim=1)
        if not (rows := loose.nonzero()[:, 0].tolist()):
            break
        problem = replace(problem, limit=torch.minimum(problem.limit, ACCEPT * floor))
    proofs = [answers[row].certificate or "residual" for row in range(B)]
    unproved = uncertified(checkpoint.model)
    ids = tokens.tolist()
    return Recovered(
        tokens=tokens,
        texts=[checkpoint.tokenizer.decode(some, skip_special_tokens=False) for some in ids],
        pieces=[checkpoint.pieces(some) for some in ids],
        residual=residual,
        floor=floor,
        certificates=[
            [proof if sure and not unproved else None for sure in certified]
            for proof, certified in zip(proofs, _certified(within, positions, T), strict=True)
        ],
        solver=name,
        evaluations=evaluations,
    )


def _floor_share(
    checkpoint: Checkpoint, circuit: Circuit, corpus: str, visible: Slice, length: int
) -> float:
    """The largest rounding floor of a background passage's outputs, as a share of their length."""

    def largest() -> float:
        text = held_out_text(checkpoint, corpus).windows("background", 1, length, least=1)
        ((outputs, rounding),) = capture([circuit], text.to(circuit.vocabulary.device))
        outputs, rounding = visible.select(outputs), visible.select(rounding)
        return float((rounding.norm(dim=-1) / outputs.norm(dim=-1)).max())

    site = circuit.sites, circuit.part
    return checkpoint.keep(("floor share", site, corpus, str(visible), length), largest)


def _checked(outputs: Tensor, circuit: Circuit) -> Tensor:
    """The outputs as `(B, T, width)`, on the model's device and in float32 at least."""
    if not outputs.is_floating_point() or outputs.dim() not in (2, 3):
        raise RequestError(
            f"outputs: {tuple(outputs.shape)} of {str(outputs.dtype).removeprefix('torch.')}; give "
            "floating-point numbers of the shape (T, width) or (B, T, width)"
        )
    outputs = outputs[None] if outputs.dim() == 2 else outputs
    B, T, width = outputs.shape
    context = circuit.model.config.context
    if width != circuit.width:
        turned = "; they look transposed" * (circuit.width in (B, T))
        raise RequestError(
            f"outputs: {width} channels, the site has {circuit.width}{turned}; give this model's "
            "outputs of the layer"
        )
    if not B or not T or context < T:
        raise RequestError(
            f"outputs: {B} prompts of {T} positions; give one prompt at least, of 1 to {context} "
            "positions, the model's context"
        )
    moved = outputs.detach().to(circuit.vocabulary.device)
    return moved if moved.dtype == torch.float64 else moved.to(circuit.vocabulary.dtype)


def _rounding(target: Tensor) -> Tensor:
    """How far storing a target in float32 can move it, `(B, S, C)` to `(B, S)`."""
    return torch.finfo(torch.float32).eps * target.norm(dim=-1)


def _slice(shown: str | Sequence[int] | None, length: int) -> Slice:
    """The slice that shows these positions; None shows all."""
    if shown is None:
        return Slice()
    if isinstance(shown, str):
        return Slice.parse(shown)
    wrong = [t for t in shown if not 0 <= t < length]
    if wrong or not shown:
        raise RequestError(f"shown: {list(shown)}; give positions from 0 to {length - 1}")
    return Slice.of(sorted(set(shown)), length)


def _certified(within: Tensor, shown: list[int], length: int) -> list[list[bool]]:
    """Of `(B, S)` positions within the limit: whether each position's token is consistent, by row.

    A token is where all that is shown from it on is.
    """
    later = within.flip(1).cummin(dim=1).values.flip(1).tolist()
    first = [next(s for s, t in enumerate(shown) if t >= position) for position in range(length)]
    return [[row[s] for s in first] for row in later]
