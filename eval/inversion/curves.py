"""Recovery curves: against the number of channels shown, or against noise in the target.

A curve starts from a grid and is bisected where recovery crosses one half. More channels or less
noise never make a token harder to tell, so a curve is monotone in expectation. With a few prompts
a measured curve is not; the nearest monotone one is taken (isotonic regression). Every point
consists of ordinary rows, so that an interrupted curve goes on where it was; the curve itself is a
row of kind "curve".
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from eval import RequestError
from eval.inversion.questions import GridCell, Question, Site
from eval.inversion.run import Job, plan
from eval.inversion.solvers import Solver
from eval.models import Checkpoint, rows_at_once
from eval.recovery import Slice
from eval.rows import Results, Row, finite_or_none, row_key
from eval.statistics import CONFIDENCE, RESAMPLES
from eval.text import Prompt

HALF = 0.5
"""The share of tokens at which a curve is read."""
QUIETEST = 1e-6  # tokens lost to less noise than this are lost to rounding
RESOLUTION = 1.0  # dB: noise is bisected to this


class Axis(NamedTuple):
    """What a curve runs along.

    Attributes:
        name: as in rows.
        grid: the values asked at first, the easiest first.
        field: of a question, and `asked` a value of it.
        of: the value of a cell.
        middle: the value to ask next between an easy and a hard one; None where they are near
            enough.
        difficulty: of a value; it rises along the curve.
        value: its inverse, infinite beyond the grid.
    """

    name: str
    grid: tuple[float, ...]
    field: str
    asked: Callable[[float], Any]
    of: Callable[[GridCell], float]
    middle: Callable[[float, float], float | None]
    difficulty: Callable[[float], float]
    value: Callable[[float], float]


def channels(width: int) -> Axis:
    """How many channels are shown, `[:, :, :c]`, of a site: powers of two, and the width."""
    return Axis(
        "channels",
        tuple(sorted({width, *(1 << i for i in range(width.bit_length()))}, reverse=True)),
        "slices",
        lambda c: Slice(high=None if c == width else int(c)),
        lambda cell: width if cell.slice.high is None else cell.slice.high,
        lambda easy, hard: (easy + hard) // 2 if easy - hard > 1 else None,
        lambda count: -math.log(count),
        lambda d: math.inf if d == -math.inf else math.ceil(math.exp(-min(d, 0.0)) - 1e-9),
    )


def _between_noises(easy: float, hard: float) -> float | None:
    """The geometric mean; a quarter of the least noise where that is too much already."""
    if not easy:
        return hard / 4 if hard > QUIETEST else None
    return math.sqrt(easy * hard) if hard > easy * 10 ** (RESOLUTION / 20) else None


NOISE = Axis(
    "noise",
    (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0),
    "noise",
    float,
    lambda cell: cell.noise,
    _between_noises,
    lambda noise: math.log(noise) if noise else -math.inf,
    math.exp,  # 0 where recovery is below one half without any noise
)
"""The noise in the target, as a fraction of its root mean square."""


@dataclass(frozen=True)
class Curve:
    """A task: a site of a checkpoint along an axis, by one method."""

    checkpoint: Checkpoint
    site: Site
    axis: Axis
    solver: Solver
    prompts: tuple[Prompt, ...]
    corpus: str

    @property
    def keys(self) -> list[str]:
        """The key of its own row, without those of its points."""
        key = row_key(
            "curve",
            *self.checkpoint.identity,
            self.site.record,
            self.axis.name,
            self.solver.name,
            self.solver.record,
            [prompt.tokens for prompt in self.prompts],
        )
        return [key]

    @property
    def cost(self) -> float:
        """How long it is likely to take, in no unit: the grid, and half of it again."""
        return 1.5 * sum(job.cost for job in self.jobs(self.axis.grid))

    def jobs(self, values: Iterable[float]) -> list[Job]:
        """The work that some points make."""
        asked: Any = {self.axis.field: tuple(map(self.axis.asked, values))}
        question = Question({self.solver.name: self.solver}, layers=(self.site.layers,), **asked)
        return plan(self.checkpoint, question, list(self.prompts), self.corpus)

    def run(self, results: Results) -> list[Row]:
        """Asks the grid, then bisects; its points' rows are saved as they come."""
        known = {row["key"]: row for row in results.rows()}
        points: dict[float, list[Row]] = {}
        wanted = self.axis.grid
        while wanted:
            jobs = self.jobs(wanted)
            known |= {row["key"]: row for row in run_jobs(jobs, results)}
            for job in jobs:
                for cell in job.cells:
                    points.setdefault(self.axis.of(cell), []).append(known[job.key(cell)])
            values, shares = self._shares(points)
            between, middle = bracket(shares.mean(axis=0)), None
            if between is not None:
                middle = self.axis.middle(values[between], values[between + 1])
            wanted = () if middle is None else (middle,)
        return [self._row(points)]

    def _shares(self, points: dict[float, list[Row]]) -> tuple[list[float], np.ndarray]:
        """Values, the easiest first, and each prompt's share of tokens there, `(P, N)`."""
        values = sorted(points, key=self.axis.difficulty)
        several = [sorted(points[value], key=lambda row: row["prompt"]) for value in values]
        return values, np.array([[row["self"]["top1"] for row in rows] for rows in several]).T

    def _row(self, points: dict[float, list[Row]]) -> Row:
        values, shares = self._shares(points)
        by_value, share = [points[value] for value in values], shares.mean(axis=0)
        difficulties = np.array([self.axis.difficulty(value) for value in values])
        limits = sorted(map(self.axis.value, interval(difficulties, shares)))
        estimate = self.axis.value(float(crossing(difficulties, share[None])[0]))
        low, high = min(limits[0], estimate), max(limits[1], estimate)
        between = bracket(share)
        row = {
            "key": self.keys[0],
            "kind": "curve",
            "checkpoint": self.checkpoint.provenance,
            "site": self.site.record,
            "axis": self.axis.name,
            "method": self.solver.name,
            "family": self.solver.family,
            "settings": self.solver.record,
            "prompts": self.prompts[0].kind,
            "count": len(self.prompts),
            "length": len(self.prompts[0].tokens),
            "values": values,
            "top1": share.tolist(),
            "exact": [fmean(row["exact"] for row in rows) for rows in by_value],
            "ambiguous": [
                fmean(verdict == "ambiguous" for row in rows for verdict in row["verdict"])
                for rows in by_value
            ],
            "threshold": HALF,
            "bracket": None if between is None else values[between : between + 2],
            "value": finite_or_none(estimate),
            "low": finite_or_none(low),
            "high": finite_or_none(high),
        }
        if self.axis is NOISE:
            limits = {"snr50": estimate, "snr50_low": high, "snr50_high": low}
            row |= {name: decibels(noise) for name, noise in limits.items()}
        return row


def run_jobs(jobs: Iterable[Job], results: Results) -> list[Row]:
    """Saves the rows that are not there yet as they come, and returns them.

    Cells that a gradient solver can treat at once become one batch, of any slices.
    """
    remaining: list[Job] = []
    together: dict[str, list[Job]] = {}
    for job in jobs:
        if job.solver.family == "gradient":
            length = len(job.cells[0].prompt.tokens)
            together.setdefault(row_key(job.label, job.settings, length), []).append(job)
        else:
            remaining.append(job)
    for several in together.values():
        cells = [cell for job in several for cell in job.cells]
        most = max((job.prompts for job in several), key=len)
        batch = rows_at_once(several[0].checkpoint.model, len(cells[0].prompt.tokens))
        parts = [cells[i : i + batch] for i in range(0, len(cells), batch)]
        remaining += [replace(several[0], prompts=most, cells=part) for part in parts]
    answers = []
    for job in remaining:
        rows = job.run(results)
        results.append(rows)
        answers += rows
    return answers


def plan_curves(
    checkpoint: Checkpoint,
    layers: tuple[int, ...] | str,
    axes: list[str],
    methods: dict[str, Solver],
    prompts: list[Prompt],
    corpus: str,
) -> list[Curve]:
    """The curves of a checkpoint.

    Args:
        checkpoint: the model.
        layers: numbers, or `all` or `last`.
        axes: some of `channels` and `noise`; methods with a prior are asked about noise alone.
        methods: by name.
        prompts: all of one length.
        corpus: whose background text the searches guess from.

    Raises:
        RequestError: a layer that does not exist, or a method that hidden positions are needed for.
    """
    for name, method in methods.items():
        refusal = method.refusal(Slice(), len(prompts[0].tokens), causal=True)
        if refusal:
            raise RequestError(
                f"--methods {name}: {refusal}; a curve shows every position, so ask a gradient "
                "method, sweep, propose or expected"
            )
    curves = []
    for site in Question(methods, layers=layers).sites(checkpoint):
        all_axes = channels(site.circuit(checkpoint).width), NOISE
        for axis in (axis for axis in all_axes if axis.name in axes):
            curves += [
                Curve(checkpoint, site, axis, method, tuple(prompts), corpus)
                for method in methods.values()
                if axis.name == "noise" or method.family != "prior"
            ]
    return curves


def monotone(shares: np.ndarray) -> np.ndarray:
    """The nearest curves that never rise, in least squares, of `(R, N)` curves."""
    return np.stack([isotonic_regression(share, increasing=False).x for share in shares])


def bracket(share: np.ndarray) -> int | None:
    """The last point at which a curve `(N,)` is at least one half, unless it is the last or none.

    The next point lies below one half.
    """
    count = int(_above(monotone(share[None])).sum())
    return count - 1 if 0 < count < len(share) else None


def crossing(difficulties: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Where curves `(R, N)` cross one half, `(R,)`: interpolated between ascending difficulties.

    Minus infinity where recovery is below one half at the easiest point, infinity where it is not
    even at the hardest.
    """
    fit, R = monotone(shares), np.arange(len(shares))
    count = _above(fit).sum(axis=1)
    inner = np.clip(count, 1, fit.shape[1] - 1)
    left, right = fit[R, inner - 1], fit[R, inner]
    part = (left - HALF) / np.maximum(left - right, np.finfo(float).tiny)
    low, high = difficulties[inner - 1], difficulties[inner]
    with np.errstate(invalid="ignore"):
        between = np.where(np.isneginf(low), low, low + np.clip(part, 0, 1) * (high - low))
    return np.where(count == 0, -np.inf, np.where(count == fit.shape[1], np.inf, between))


def interval(difficulties: np.ndarray, shares: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % limits of the crossing of `(P, N)` shares' mean, by a bootstrap over the P prompts."""
    P = len(shares)
    draws = np.random.default_rng([seed, P]).multinomial(P, np.full(P, 1 / P), size=RESAMPLES)
    crossings = crossing(difficulties, draws @ shares / P)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(crossings, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def decibels(noise: float) -> float | None:
    """Signal to noise, 1 / noise^2; None without noise or without bound."""
    return 20 * math.log10(1 / noise) if 0 < noise < math.inf else None


def _above(fit: np.ndarray) -> np.ndarray:
    return fit >= HALF - 1e-12  # sums in another order must not matter
