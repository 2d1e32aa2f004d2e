"""Whose outputs a captured tensor holds: the site at which the model itself gives such outputs.

Sites of the tensor's width are ranked by how likely its numbers are under the mean and the variance
of each channel on ordinary text. At the likeliest few the first tokens are then searched for: at
the right one they reach the rounding floor, at no other. Outputs of another program may reach it
nowhere: then a site is taken at which they come far nearer than at all others. The precision that
the model computed in is found alike: the first in which they do. Below float32 a first token may be
mistaken, of which many models keep little; later ones then miss the floor, and the site at which
they come nearest is the likeliest.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from arch import LanguageModel
from eval.captured.arithmetic import EXACT, Arithmetic, take_windows
from eval.captured.files.stored import Stored
from eval.inversion.guesses import open_readbacks
from eval.inversion.problem import Problem
from eval.inversion.reading import Paths, Reading
from eval.messages import ArgumentError
from eval.models.memory import candidates_at_once, rows_at_once
from eval.sites.circuit import PARTS, Circuit, join
from eval.sites.site import list_circuits
from eval.sites.slices import Slice

if TYPE_CHECKING:
    from eval.models.checkpoint import Checkpoint

TOGETHER = 6  # of the likeliest sites, at which tokens are searched for at once
MOST = 2 * TOGETHER  # sites that are tried, one group after another, until most tokens fit
FIRST = 6  # tokens searched for
PROMPTS = 3  # that are searched, one after another, until most of the first tokens of one fit
TRIED = 16, 256  # tokens run at each position: the likeliest by the text, and by the read-back
WINDOWS = 16, 64  # of background text, and tokens of each
CENTRED, FEWEST_ROWS = 1e-3, 4  # of the root mean square, a mean that is none; rows that tell
UNIT = 0.05  # by which the root mean square behind a norm may differ from 1
LONGER = 1.25  # times their usual length, which the final norm's outputs do not reach
FARTHEST_FRACTION, CLEAR_RATIO = 0.1, 3.0
"""Of outputs' length, how far off they may be at a site that no token fits to rounding; and how
many times as far they are at all other sites, at least."""
LARGEST_SQUARE = 25.0  # squared deviations count up to here, in variances


class Match(NamedTuple):
    """A site that a tensor may be of.

    Attributes:
        part: of the layer.
        layer: number from 0.
        hits: of the first tokens, how many were found at the rounding floor.
        tried: of how many.
        distance: of the outputs found from those given, of their length, on average.
    """

    part: str
    layer: int
    hits: int
    tried: int
    distance: float = 0.0

    @property
    def name(self) -> str:
        """Part and layer, as `Circuit.name`."""
        return f"{self.part}.{self.layer}"


def find_site(
    checkpoint: "Checkpoint",
    stored: Stored,
    positions: Sequence[int],
    corpus: str,
    part: str | None = None,
    computed: str | None = None,
) -> tuple[list[Match], str]:
    """The sites that fit a tensor best, the best first; by few of its prompts, as all are of one.

    Args:
        stored: the tensor, `(B, T, width)`.
        positions: shown; from 0 on for the search, else sites are ranked by likelihood alone.
        corpus: whose background text is compared with.
        part: that alone is looked at; None: all.
        computed: the precision of the model's computation; None: found.

    Returns:
        The sites, and the precision in which they fit; the first has no hit where outputs come far
        nearer at it than at all others and fit at none.

    Raises:
        RequestError: no site has that width, or the first tokens fit and come near at none.
    """
    width, values = stored.values.shape[-1], stored.values
    known = list_circuits(checkpoint.model, PARTS if part is None else (part,))
    if not known and part is not None:
        Circuit(checkpoint.model, checkpoint.config.n_layers, part)  # says why there is none
    sites = [circuit for circuit in known if circuit.width == width]
    if not sites:
        widths = sorted({circuit.width for circuit in known})
        turned = "; they look transposed" * any(n in widths for n in values.shape[:2])
        count, rest = divmod(width, checkpoint.config.d_model)
        if not rest and 1 < count <= len(checkpoint.model.blocks) + 1:
            turned = f"; are they of {count} layers side by side? give --layer, the numbers of all"
        raise ArgumentError(
            "outputs",
            f"{width} channels; sites of this model have {', '.join(map(str, widths))}"
            f"{turned}; give this model's outputs",
        )
    seen = values[:, [t for t in positions if t] or list(positions)].flatten(0, 1)
    likely = sorted(_unlikelihoods(checkpoint, sites, seen, corpus), key=lambda entry: entry[1])
    groups, count = _group([circuit for circuit, _ in likely]), _first_shown(positions)
    ranked = [circuit for group in groups for circuit in group]
    if not count:
        return [Match(circuit.part, circuit.depth, 0, 0) for circuit in ranked], computed or EXACT
    choices = [Arithmetic(checkpoint, name, corpus) for name in list_precisions(stored, computed)]
    tried: list[tuple[Match, str]] = []
    for prompt in _first_prompts(stored, count):
        found = _try_sites(choices, groups, prompt)
        if not tried or found[0][0].hits > tried[0][0].hits:
            tried = found
        if 2 * tried[0][0].hits > count:
            break
    best, name = tried[0]
    lower = [entry for entry in tried if entry[1] != EXACT]
    if lower and 2 * best.hits <= count:  # at the right site float32 would have hit
        best, name = lower[0]
    if not best.hits and (nearest := _far_nearest(tried)):
        tried.insert(0, tried.pop(tried.index(nearest)))
        name = nearest[1]
    elif not best.hits:
        names = ", ".join(circuit.name for circuit in ranked)
        raise ArgumentError(
            "outputs",
            f"no token fits at the likeliest sites ({names}); are they of another model, "
            "or of another place in it? give --layer and --part to search there all the same"
            + describe_change(checkpoint.model, seen),
        )
    return [match for match, of_match in tried if of_match == name], name


def _first_prompts(stored: Stored, count: int) -> Iterator[Stored]:
    """The first `count` rows of a few prompts, each alone.

    Prompts with rows of zeros among them come last: zeros are padding, or fit at every site.
    """
    empty = (stored.values[:, :count] == 0).all(dim=-1).sum(dim=-1).tolist()
    for prompt in sorted(range(len(empty)), key=empty.__getitem__)[:PROMPTS]:
        yield stored.map(lambda x, row=prompt: x[row : row + 1, :count])


def _try_sites(
    choices: Sequence[Arithmetic], groups: Sequence[list[Circuit]], prompt: Stored
) -> list[tuple[Match, str]]:
    """How one prompt fits at sites in each precision, the best first; until most tokens do."""
    tried = list[tuple[Match, str]]()
    for group, arithmetic in product(groups, choices):
        found = _match(arithmetic, group, prompt)
        tried += [(match, arithmetic.name) for match in found]
        if any(2 * match.hits > match.tried for match in found):
            break
    return sorted(tried, key=lambda entry: (-entry[0].hits, entry[0].distance))


def _far_nearest(tried: list[tuple[Match, str]]) -> tuple[Match, str] | None:
    """The site at which outputs come far nearer than at all others, as where others computed them.

    None where there is none, or it is not near.
    """
    best, name = min(tried, key=lambda entry: entry[0].distance)
    others = [x.distance for x, _ in tried if x.name != best.name]
    clear = CLEAR_RATIO * best.distance <= min(others, default=math.inf)
    return (best, name) if best.distance <= FARTHEST_FRACTION and clear else None


def describe_change(model: LanguageModel, values: Tensor) -> str:
    """What outputs `(N, width)` of length 1 or without a mean tell, as the end of a line.

    Empty for other outputs, and for models whose own stream has mean 0, as behind norms after their
    blocks. A length of 1 is told of any model.
    TransformerLens centres the weights of a model whose norms take off the mean, and of no other.
    """
    if len(values) >= FEWEST_ROWS and bool(((values.norm(dim=-1) - 1).abs() <= CENTRED).all()):
        return (
            "; every row has the length 1, as embeddings that are normalised: give them as they "
            "were before (llama.cpp: --embd-normalize -1; vLLM: use_activation false)"
        )
    if not _are_centred(values):
        return ""
    tokens = torch.arange(FEWEST_ROWS, device=model.embedding.weight.device)[None]
    own = Circuit(model, 1).of_tokens(tokens)[0].to(model.embedding.weight.dtype)
    if _are_centred(own):
        return ""
    if bool(((values.square().mean(dim=-1).sqrt() - 1).abs() <= UNIT).all()):
        return (
            "; the mean over their features is 0 and their mean square 1 at every position, as "
            "behind a LayerNorm without its weights: capture what goes into it"
        )
    with torch.no_grad():
        same = torch.allclose(model.norm(own + own.abs().mean()), model.norm(own), atol=1e-3)
    if not same:
        return "; the mean over their features is 0 at every position: give them with their mean"
    return (
        "; the mean over their features is 0 at every position, as in TransformerLens, which "
        "centres weights: capture with center_writing_weights=False, fold_ln=False and "
        "fold_value_biases=False"
    )


def find_factor(values: Tensor, own: Tensor, least: float = LONGER) -> float | None:
    """How many times as long outputs `(..., width)` are as a model's own, by their medians.

    None stands for a factor between `1 / least` and `least`.
    """
    factor = float(values.norm(dim=-1).nanmedian() / own.norm(dim=-1).median())
    return factor if factor >= least or factor <= 1 / least else None


def _are_centred(values: Tensor) -> bool:
    """Whether the mean over features of `(N, width)` outputs is none at every position."""
    mean, size = values.mean(dim=-1).abs(), values.square().mean(dim=-1).sqrt()
    enough = len(values) >= FEWEST_ROWS
    return enough and bool((mean <= CENTRED * size).all()) and bool(size.any())


def _group(ranked: list[Circuit]) -> list[list[Circuit]]:
    """The likeliest sites in groups that are tried together, one group after another.

    The final norm's outputs are like no other site's: it stands alone, first if it is likeliest.
    """
    others = [circuit for circuit in ranked if circuit.part != "final"]
    last = [circuit for circuit in ranked if circuit.part == "final"]
    groups = [others[i : i + TOGETHER] for i in range(0, min(len(others), MOST), TOGETHER)]
    if last:
        groups.insert(0 if ranked[0] is last[0] else 1, last)
    return groups


def _match(arithmetic: Arithmetic, circuits: list[Circuit], prompt: Stored) -> list[Match]:
    """How the tokens of a prompt fit at each of some sites, in one precision.

    Rows of zeros, but for codes, are no evidence of a token, though one whose embedding is 0 fits.
    """
    matches, count = list[Match](), prompt.values.shape[1]
    circuits = sorted(
        circuits, key=lambda circuit: (list(PARTS).index(circuit.part), circuit.depth)
    )
    for part, of_part in groupby(circuits, lambda circuit: circuit.part):
        sites = list(of_part)
        paths, targets = search_tokens(arithmetic, sites, prompt)
        sizes = torch.stack([target[0].norm(dim=-1) for target in targets])
        good = paths.good[:, 0] & ((sizes > 0) | prompt.coarse)
        away = (paths.distances[:, 0] / sizes).masked_fill(sizes == 0, 1.0).mean(dim=-1)
        matches += [
            Match(part, circuit.depth, int(hits), count, float(distance))
            for circuit, hits, distance in zip(sites, good.sum(dim=-1), away, strict=True)
        ]
    return matches


def count_hits(
    arithmetic: Arithmetic, circuit: Circuit, stored: Stored, positions: Sequence[int]
) -> tuple[int, int]:
    """How many of the first tokens shown of one prompt are found at a site, and of how many."""
    if not (count := _first_shown(positions)):
        return 0, 0
    (match,) = _match(arithmetic, [circuit], next(_first_prompts(stored, count)))
    return match.hits, count


def find_precision(
    checkpoint: "Checkpoint",
    circuit: Circuit,
    stored: Stored,
    positions: Sequence[int],
    corpus: str,
) -> str:
    """The precision in which a site's numbers were computed, by its first tokens: see `find_site`.

    The lower one of the format where they do not say that it was float32; float32 where they are
    hidden.
    """
    count, names = _first_shown(positions), list_precisions(stored)
    if not count or len(names) == 1:
        return EXACT
    hits = dict.fromkeys(names, 0)
    for prompt, name in product(_first_prompts(stored, count), names):
        (match,) = _match(Arithmetic(checkpoint, name, corpus), [circuit], prompt)
        if 2 * match.hits > count:
            return name
        hits[name] += match.hits
    return max(names[1:], key=lambda name: hits[name])


def list_precisions(stored: Stored, computed: str | None = None) -> list[str]:
    """Those that numbers of a format may have been computed in, the likeliest first."""
    if computed:
        return [computed]
    if stored.scaled:
        return [EXACT, "bf16", "fp16"]
    return [EXACT] if stored.format == EXACT else [EXACT, stored.format]


def _first_shown(positions: Sequence[int]) -> int:
    """How many positions are shown from 0 on, `FIRST` at most."""
    return min(next((i for i, t in enumerate(positions) if t != i), len(positions)), FIRST)


@torch.no_grad()
def _unlikelihoods(
    checkpoint: "Checkpoint", sites: list[Circuit], values: Tensor, corpus: str
) -> list[tuple[Circuit, float]]:
    """Minus the log likelihood of `(N, width)` numbers at each site, up to a constant."""
    model, text = checkpoint.model, take_windows(checkpoint, corpus, *WINDOWS)
    (_, length), found, last = text.shape, [], None
    for part, of_part in groupby(sites, lambda circuit: circuit.part):
        circuits = list(of_part)
        whole, cut = join(circuits)
        if part == "final" and last is not None:  # no second pass for it
            outputs = model.norm(last.to(model.embedding.weight.dtype)).to(last.dtype)
        else:
            size = rows_at_once(model, length, gradients=False)
            outputs = torch.cat([whole.of_tokens(rows) for rows in text.split(size)])
        if part == "block" and circuits[-1].depth == len(model.blocks):
            last = cut(outputs)[-1]
        later = outputs[:, 1:] if length > 1 else outputs
        for circuit, of_site in zip(circuits, cut(later.flatten(0, 1)), strict=True):
            variance = of_site.var(dim=0) + 1e-6 * of_site.var(dim=0).mean()
            off = (values - of_site.mean(dim=0)).square() / variance
            found.append((circuit, float((off.clamp(max=LARGEST_SQUARE) + variance.log()).mean())))
    return found


def find_beginnings(arithmetic: Arithmetic, circuit: Circuit, rows: Stored) -> list[int]:
    """Which of `(N, 1, width)` rows are outputs of some token at the first position."""
    size, found = max(1, candidates_at_once(circuit.model) // sum(TRIED)), list[int]()
    for start in range(0, len(rows.values), size):
        part = rows.map(lambda x, start=start: x[start : start + size])
        paths, _ = search_tokens(arithmetic, [circuit], part)
        found += (start + paths.good[0, :, 0].nonzero()[:, 0]).tolist()
    return found


def search_tokens(
    arithmetic: Arithmetic, circuits: list[Circuit], stored: Stored
) -> tuple[Paths, list[Tensor]]:
    """Searches for tokens of prompts at sites of one part; with it, what is searched at each."""
    whole, problems, count = Slice(), [], stored.values.shape[1]
    checkpoint, corpus = arithmetic.checkpoint, arithmetic.corpus
    searched = [circuit.unrotated(stored.values) for circuit in circuits]
    for circuit, target in searched:
        tolerance = arithmetic.tolerance(circuit, whole, target, stored.step, most=0.5)
        problems.append(Problem(circuit, whole, count, target, tolerance, 0 * tolerance.floor))
    readbacks = open_readbacks(checkpoint, corpus, [circuit for circuit, _ in searched])
    paths = Reading(problems, readbacks, *TRIED).search_together()
    return paths, [target for _, target in searched]
