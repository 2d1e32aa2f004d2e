"""Tokens from the scores that an API returns: the log-probabilities of a few tokens a position.

k numbers at a position are fewer than the outputs behind them have, so that these cannot be solved
for. Tokens are run from left to right instead, those that the read-back of the final norm's outputs
thinks likeliest first: its slopes and its scatter are known of the scores, too, as the head is
linear and only a constant, the logarithm of the sum over all tokens, is not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arch.kernels.arithmetic import plain_arithmetic
from eval.captured.answer import Recovered
from eval.captured.arithmetic import EXACT
from eval.captured.certainty.likelihood import WHOLE, limit_chances, probability, run_candidates
from eval.captured.certainty.rivals import NAMED, nearest_rows
from eval.captured.files.stored import ENOUGH, is_plain, read_stored
from eval.captured.search.head import read_head
from eval.inversion.guesses import open_readbacks
from eval.messages import ArgumentError, RequestError, question, say_once, span
from eval.models.checkpoint import open_models
from eval.models.corpora import choose_corpus
from eval.sites.circuit import Circuit, uncertified

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint
    from eval.sites.activations import Model

LIKELIEST_TOKENS = 64  # by the text, that are run at each position
SHORTLIST = 256  # tokens run besides; four times as many while none fits
MOST_FALSE_MATCHES = 1e-4  # other tokens expected to agree by chance with scores that tell one
NEAREST = 8  # tokens of the smallest crowd whose chance is taken; the next have twice as many
NOT_KNOWN = -9999.0
"""A score from which on down there is none: OpenAI's API gives it for a token too unlikely."""
ROUNDING = 16
"""Units of float32 by which another computation's score may differ, of the size of its terms."""


@dataclass(frozen=True)
class Position:
    """What was found at a position."""

    token: int
    fits: list[int]  # tokens run that agree, the best first
    distance: float  # of its scores from those given
    limit: float  # that rounding makes, at most
    chance: float  # probability of the token, by its distance
    ran: int
    telling: bool  # whether hardly any token agrees by chance with so many scores, so precise


@question()
@plain_arithmetic()
def recover_scores(
    model: "Model",
    ids: Tensor | Sequence[Sequence[int]],
    values: Tensor | Sequence[Sequence[float]],
    *,
    corpus: str | None = None,
    device: str = "auto",
) -> Recovered:
    """Recovers a prompt from the log-probabilities of some next tokens at each of its positions.

    Args:
        model: a model directory, `hf:` and a pretrained model's name, or an open model.
        ids: of the next tokens whose scores are given, `(T, k)`; at least two.
        values: their log-probabilities after each token of the prompt, `(T, k)`, in nats, as
            precise or as coarse as they were printed.
        corpus: whose held-out text the search guesses from; None: that of the model's training.
        device: where to compute; auto takes a GPU that is in reach.

    Raises:
        RequestError: shapes that do not fit, ids that the model has not, numbers that are not
            finite or above 0, more positions than its context, or a model whose logits are no
            product of its head.
        ModelError: the model cannot be opened.
    """
    (checkpoint,) = open_models(model, device)
    ids, values = _read_numbers("ids", ids), _read_numbers("values", values)
    _check(checkpoint, ids, values)
    ids = ids.long()  # of 8 bits without a sign they would choose rows as a mask does
    stored = read_stored(values)
    held = stored.values[0].double()
    if rows := checkpoint.model.padding_rows:
        say_once(
            f"scores: the captured model has {rows} logits of no token, which its softmax may "
            "count: scores are compared up to a constant"
        )
    search = _Search(checkpoint, choose_corpus([checkpoint], corpus))
    found = [search.next(*row) for row in zip(ids, held, stored.step[0].double(), strict=True)]
    if misfits := [t for t, position in enumerate(found) if not position.fits]:
        few = stored.format == EXACT and values.unique().numel() < ENOUGH
        more = f" Or were they rounded, which fewer than {ENOUGH} different numbers do not show?"
        say_once(_describe_misfits(misfits, len(found)) + f"{more} give more" * few)
    return _answer(checkpoint, found, stored.format)


class _Search:
    """The search from left to right; it remembers the tokens found so far.

    Where the captured model's softmax may count more logits than those of tokens, all scores of a
    position may be off by one number (`shifted`).
    """

    def __init__(self, checkpoint: "Checkpoint", corpus: str) -> None:
        self.circuit = Circuit(checkpoint.model, checkpoint.config.n_layers, "final")
        self.weight, self.bias = read_head(checkpoint.model)
        (self.readback,) = open_readbacks(checkpoint, corpus, [self.circuit])
        self.shifted = checkpoint.model.padding_rows > 0
        self.longest = float(self.weight.norm(dim=1).max())
        self.state, self.likely = None, None

    @torch.no_grad()
    def next(self, ids: Tensor, values: Tensor, step: Tensor) -> Position:
        """The token at the next position, by `(k,)` scores of it and their steps."""
        V = len(self.weight)
        ids, values, step = (x.to(self.weight.device) for x in (ids, values, step))
        tokens, outputs = ids[:0], self.weight[:0]
        if self.likely is not None:
            tokens, outputs = self._run(self.likely, tokens, outputs)
        guesses, size = self._guess(ids, values, outputs), min(SHORTLIST, V)
        more = _best(guesses, tokens, size)
        while True:
            tokens, outputs = self._run(more, tokens, outputs)
            scores = self._score(outputs, ids)
            errors, half = scores - values, step / 2
            if self.shifted:
                errors, half = errors - errors.mean(dim=1, keepdim=True), half + half.mean()
            errors = errors.abs()
            terms = float(outputs.norm(dim=1).max()) * self.longest + float(-values.min())
            slack = ROUNDING * torch.finfo(torch.float32).eps * terms
            agree = (errors <= half + slack).all(dim=1)
            fits = int(agree.sum())
            if fits == 1:  # one of an equal row agrees too, however unlikely it seemed
                neighbours = nearest_rows(self.circuit, tokens[agree][None]).flatten().unique()
                more = neighbours[~torch.isin(neighbours, tokens)]
            if fits > 1 or (fits and not len(more)) or len(tokens) >= min(V, WHOLE):
                break
            if not fits:
                size *= 4
                more = _best(guesses, tokens, size)
        distances = errors.norm(dim=1)
        by_chance = self._log_chance(scores[distances.argsort()], half + slack)
        order = torch.where(agree, distances, distances + distances.max() + 1).argsort()
        centred = scores - scores.mean(dim=1, keepdim=True)
        chance = probability(centred[order], values - values.mean(), V)
        token = int(tokens[order[0]])
        hidden, self.state = self.circuit.extend(tokens[order[:1], None], self.state)
        logits = hidden[0, 0] @ self.weight.T + self.bias
        self.likely = logits.topk(min(LIKELIEST_TOKENS, V)).indices
        return Position(
            token,
            tokens[order[: int(agree.sum())]].tolist(),
            float(distances[order[0]]),
            float((half + slack).norm()),
            chance,
            len(tokens),
            by_chance < math.log(MOST_FALSE_MATCHES),
        )

    def _log_chance(self, scores: Tensor, tolerance: Tensor) -> float:
        """The log of how many other tokens' scores agree by chance within `(k,)` tolerances.

        The scores of the tokens that were run, `(N, k)`, the nearest first, differ along their
        singular vectors. Along some they differ by nothing: where rows of the head are equal, or
        where scores are compared up to a constant. Tokens that are alike crowd, so that each
        number of the nearest is asked, and the worst is believed; those not run count as others.
        """
        found, count = -math.inf, min(NEAREST, len(scores))
        while True:
            centred = scores[:count] - scores[:count].mean(dim=0)
            if self.shifted:
                centred = centred - centred.mean(dim=1, keepdim=True)
            spread = torch.linalg.svdvals(centred) / count**0.5
            spread = spread.clamp(min=torch.finfo(scores.dtype).tiny)
            inside = float(torch.special.erf(tolerance.max() / (2 * spread)).log().sum())
            if count == len(scores):
                return max(found, inside + math.log(len(self.weight)))
            found = max(found, inside + math.log(count))
            count = min(2 * count, len(scores))

    def _guess(self, ids: Tensor, values: Tensor, outputs: Tensor) -> Tensor:
        """How likely each token is by the read-back, `(V,)`; outputs of known ones are `(n, D)`."""
        rows, first = self.weight[ids], self.likely is None
        rows = rows - rows.mean(dim=0)  # a constant of all scores counts for nothing
        guesser, E = self.readback.guesser_through(rows, first), self.readback.embeddings
        if first:
            output, embedding = self.readback.start(0, None)
        else:
            output, embedding = outputs.mean(dim=0)[None], E[self.likely].mean(dim=0)[None]
        values = values - self.bias[ids].to(values)
        target = (values - values.mean()).to(E)[None]
        return guesser.scores(guesser.read(target, output @ rows.T, embedding))[0]

    def _run(self, more: Tensor, tokens: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their outputs `(N, D)`, with those of more tokens."""
        if not len(more):  # all of a small vocabulary have run
            return tokens, outputs
        (ran,) = run_candidates(self.circuit, more[None], self.state)
        return torch.cat([tokens, more]), torch.cat([outputs, ran])

    def _score(self, outputs: Tensor, ids: Tensor) -> Tensor:
        """Log-probabilities `(N, k)` of `(N, D)` outputs."""
        scores = []
        for part in outputs.split(1024):
            logits = part @ self.weight.T + self.bias
            scores.append((logits[:, ids] - logits.logsumexp(dim=1, keepdim=True)).double())
        return torch.cat(scores)


def _best(guesses: Tensor, known: Tensor, count: int) -> Tensor:
    """The likeliest tokens by `(V,)` guesses that were not run yet."""
    guesses[known] = -torch.inf
    return guesses.topk(min(count, len(guesses) - len(known))).indices


def _describe_misfits(misfits: list[int], length: int) -> str:
    """A line for positions that no token fits, of as many."""
    if len(misfits) == length:
        return (
            "scores: no token fits at any position; are they natural logarithms of this model's"
            " probabilities, at temperature 1, over all tokens, after each token of the prompt?"
        )
    return (
        f"scores: no token fits at position {span(misfits)}, so that none of the prompt is certain;"
        " did the model compute below float32, or with other weights? or do too few or too coarse"
        " scores leave a token before in doubt?"
    )


def _certify(sure: bool, found: list[Position], tokens: int) -> list[str | None]:
    """Why the token at each position is certain; None where it is not.

    Where no token fits, the scores are not this model's to rounding, or a token before is wrong:
    others may then fit by accident, and none of the prompt is certain.
    """
    sure = sure and all(of.fits for of in found)
    proofs, settled = list[str | None](), True
    for of in found:
        proved = sure and len(of.fits) == 1 and of.telling
        settled &= proved
        whole = settled and of.ran >= tokens
        proofs.append("enumerated" if whole else "residual" if proved else None)
    return proofs


def _answer(checkpoint: "Checkpoint", found: list[Position], format: str) -> Recovered:
    ids, V = [position.token for position in found], checkpoint.config.vocab_size
    proofs = _certify(not uncertified(checkpoint.model), found, V)
    proved = [proof is not None for proof in proofs]
    chances = [1.0 if proof else None if len(of.fits) > 1 else of.chance
               for proof, of in zip(proofs, found, strict=True)]  # fmt: skip
    alike = {t: of.fits[1 : NAMED + 1] for t, of in enumerate(found) if len(of.fits) > 1}
    return Recovered(
        tokens=torch.tensor([ids]),
        texts=[checkpoint.tokenizer.decode(ids, skip_special_tokens=False)],
        pieces=[checkpoint.pieces(ids)],
        positions=list(range(len(ids))),
        residual=torch.tensor([[of.distance for of in found]]),
        floor=torch.tensor([[of.limit for of in found]]),
        relative_residual=torch.full((1, len(found)), torch.nan),  # scores have no length
        certificates=[proofs],
        probabilities=[limit_chances(chances, proved)],
        left_out=[[]],
        alike=[alike],
        alike_pieces=[{t: checkpoint.words(tokens) for t, tokens in alike.items()}],
        site=f"scores of {checkpoint.config.n_layers}",
        matches=[],
        format=format,
        computed=EXACT,
        solver="scores",
        evaluations=[sum(of.ran for of in found)],
    )


def _read_numbers(name: str, given: Any) -> Tensor:
    try:
        numbers = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):  # texts, None, rows of unlike lengths
        numbers = torch.zeros(0, dtype=torch.bool)
    if not is_plain(numbers) or numbers.dtype == torch.bool:
        raise ArgumentError(name, "no rows of numbers, as many at each position; give (T, k)")
    return numbers


def _check(checkpoint: "Checkpoint", ids: Tensor, values: Tensor) -> None:
    V, context = checkpoint.config.vocab_size, checkpoint.config.context
    shape = tuple(values.shape)
    if values.dim() != 2 or tuple(ids.shape) != shape or min(shape) < 1 or shape[1] < 2:
        raise RequestError(
            f"ids {tuple(ids.shape)}, values {shape}: give (T, k) of both, k at least 2"
        )
    if ids.is_floating_point() or not values.is_floating_point():
        raise RequestError(f"ids {ids.dtype}, values {values.dtype}; give integers, and floats")
    if int(ids.min()) < 0 or int(ids.max()) >= V:
        raise ArgumentError(
            "ids", f"{int(ids.min())} to {int(ids.max())}; the model has 0 to {V - 1}"
        )
    if any(len(set(row)) < shape[1] for row in ids.tolist()):
        raise ArgumentError("ids", "one stands twice at a position; give each once")
    if not bool(values.float().isfinite().all()) or float(values.float().max()) > 0.01:
        raise ArgumentError(
            "values", "not finite, or above 0; give log-probabilities, of logits part logits"
        )
    if (least := float(values.float().min())) <= NOT_KNOWN:
        raise ArgumentError(
            "values",
            f"{least:g}, as OpenAI's API marks a token too unlikely for a number; "
            "give fewer tokens at each position (k)",
        )
    if shape[0] > context:
        raise ArgumentError("values", f"{shape[0]} positions; the model's context is {context}")
