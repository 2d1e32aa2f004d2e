"""The answer of `recover`: tokens, and how sure each of them is."""

from dataclasses import dataclass

from torch import Tensor

from eval.captured.captured import Captured
from eval.captured.certainty.certify import Certified
from eval.captured.certainty.likelihood import LIKELY_PROBABILITY
from eval.captured.certainty.verified import Found
from eval.captured.locate import Match
from eval.messages import legible

UNSURE = "?"


@dataclass(frozen=True)
class Recovered:
    """The tokens of B prompts, up to the last position shown, and how sure they are.

    Attributes:
        tokens: `(B, T)`.
        texts: of each prompt.
        pieces: how each token reads on its own, by prompt.
        positions: that are shown.
        residual: distance of the answer's outputs from those given, at each position shown,
            `(B, S)`.
        floor: distance that rounding makes there, `(B, S)`: the model's own on the answer's tokens,
            and that of the format in which the outputs are stored.
        relative_residual: the same distance as a fraction of the length of what is given, `(B, S)`:
            where tokens are likely and none certain, how far noise, a coarse format or other
            weights move the outputs.
        certificates: of each prompt and position: "residual" (what is shown from there on is as the
            answer's, to rounding), "enumerated" (and no other token's is), or None.
        probabilities: of each prompt and position: 1 where the token is certain; else how likely it
            is by its distance from what was captured, beside the tokens that were run; None where
            its own output is not shown, or another token fits as well.
        left_out: of each prompt the positions at its end that no token fits, such as empty slots of
            a cache; `texts` end before them.
        alike: of each prompt the positions where other tokens that were run fit as well, with
            those tokens, the likeliest first; a certain token has none.
        alike_pieces: how these read.
        site: whose outputs they are, as `block.3`.
        matches: where no layer was given, the sites that were tried, the best first.
        format: in which they are stored.
        computed: the precision of the computation.
        solver: that was asked.
        evaluations: tokens sent through the model for each prompt.
        elsewhere: where rows fit better at another site, in another precision or behind other
            rows: which, as a line; else empty.
    """

    tokens: Tensor
    texts: list[str]
    pieces: list[list[str]]
    positions: list[int]
    residual: Tensor
    floor: Tensor
    relative_residual: Tensor
    certificates: list[list[str | None]]
    probabilities: list[list[float | None]]
    left_out: list[list[int]]
    alike: list[dict[int, list[int]]]
    alike_pieces: list[dict[int, list[str]]]
    site: str
    matches: list[Match]
    format: str
    computed: str
    solver: str
    evaluations: list[int]
    elsewhere: str = ""

    @classmethod
    def of(cls, captured: Captured, found: Found, certified: Certified, solver: str) -> "Recovered":
        """The answer of a search, in words."""
        checkpoint, verified, T = captured.checkpoint, certified.verified, captured.length
        ids = verified.tokens.tolist()
        kept = [row[: min(tail, default=T)]
                for row, tail in zip(ids, certified.left_out, strict=True)]  # fmt: skip
        floor = found.problem.slice.select(verified.rounding).norm(dim=-1)
        return cls(
            tokens=verified.tokens,
            texts=[checkpoint.tokenizer.decode(row, skip_special_tokens=False) for row in kept],
            pieces=[checkpoint.pieces(row) for row in ids],
            positions=captured.positions,
            residual=verified.residual,
            floor=floor + captured.half_steps / 3**0.5,
            relative_residual=verified.residual / found.problem.target.norm(dim=-1),
            certificates=certified.certificates,
            probabilities=[
                [1.0 if proof else None if p != p else p for proof, p in zip(*of_row, strict=True)]
                for of_row in zip(
                    certified.certificates, certified.probabilities.tolist(), strict=True
                )
            ],
            left_out=certified.left_out,
            alike=certified.alike,
            alike_pieces=[
                {t: checkpoint.words(tokens) for t, tokens in others.items()}
                for others in certified.alike
            ],
            site=captured.circuit.name,
            matches=captured.matches,
            format=captured.stored.format,
            computed=captured.arithmetic.name,
            solver=solver,
            evaluations=found.evaluations,
        )

    @property
    def fits(self) -> bool:
        """Whether any token is certain or likely, or any output as near as rounding lets it be."""
        graded = any(grade != "unknown" for grades in self.grades for grade in grades)
        return graded or bool((self.residual <= self.floor).any())

    @property
    def proven(self) -> bool:
        """Whether any token is certain."""
        return any(proof for proofs in self.certificates for proof in proofs)

    @property
    def mostly_certain(self) -> bool:
        """Whether more than half of the tokens are certain."""
        sure = [bool(proof) for proofs in self.certificates for proof in proofs]
        return 2 * sum(sure) > len(sure)

    @property
    def grades(self) -> list[list[str]]:
        """Of each prompt and position: certain, likely (by `LIKELY_PROBABILITY`) or unknown."""
        return [
            ["certain" if proof else "likely" if (p or 0) >= LIKELY_PROBABILITY else "unknown"
             for proof, p in zip(proofs, chances, strict=True)]
            for proofs, chances in zip(self.certificates, self.probabilities, strict=True)
        ]  # fmt: skip

    def __str__(self) -> str:
        """A line for each prompt; a token that nothing certifies stands between question marks."""
        lines = (
            "".join(
                piece if sure else f"{UNSURE}{piece}{UNSURE}"
                for piece, sure in zip(pieces, certificates, strict=True)
            )
            for pieces, certificates in zip(self.pieces, self.certificates, strict=True)
        )
        return legible("\n".join(lines))
