"""A trained inverter: a small bidirectional decoder from a slice to every token; as a task.

Its information is a lower bound of the slice's (with the statistics of stories, which it learns as
well): H(token) - CE, and in published figures I_e = 1 - CE / ln V (Badger, 2602.13466).
It starts as the Gaussian probe, which reads each shown output by itself: its blocks add nothing
yet, its head is the probe. Hidden positions hold a learnt vector.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.artefacts import fitted
from eval.circuit import Circuit
from eval.classifiers import Classifier, TokenMoments, calibrated, gaussian, token_means
from eval.models import Checkpoint, tokens_at_once
from eval.probes.linear import FACTOR_EXAMPLES, HELD_BACK, ProbeText, TokenScore, score_unigram
from eval.recovery import Slice
from eval.rows import Results, Row, row_key

WARM_UP = 0.1  # of the steps
METRIC_FLOOR = 1e-3  # of the whole covariance: no direction is stretched beyond use


@dataclass(frozen=True)
class Decoding:
    """An inverter and its training by AdamW, the rate rising over a tenth and falling to zero.

    Attributes:
        blocks: encoder blocks.
        width: features in them; as many as channels are shown at least.
        heads: of attention.
        steps: number of steps.
        windows: windows of a batch.
        rate: the highest rate.
        seed: of its start and of the order of the windows.
    """

    blocks: int = 2
    width: int = 128
    heads: int = 4
    steps: int = 300
    windows: int = 16
    rate: float = 3e-3
    seed: int = 0


class Inverter(nn.Module):
    """`(B, S, C)` shown outputs to `(B, T, V)` logits of the tokens at all positions.

    Args:
        probe: where to start from: logits of a shown position's token from its output.
        metric: the covariance of outputs of one token, `(C, C)`: features are whitened by it.
        log_share: the start at hidden positions, `(V,)`.
        shown: the positions that are shown.
        length: T.
        decoding: its size.
    """

    center: Tensor
    whiten: Tensor
    is_shown: Tensor

    def __init__(
        self,
        probe: Classifier,
        metric: Tensor,
        log_share: Tensor,
        shown: list[int],
        length: int,
        decoding: Decoding,
    ) -> None:
        super().__init__()
        C, V = probe.weight.shape
        W = -(-max(decoding.width, C) // decoding.heads) * decoding.heads
        self.shown = shown
        root = torch.linalg.cholesky(metric)
        self.register_buffer("center", probe.center)
        self.register_buffer("whiten", torch.linalg.inv(root).T.to(probe.weight))
        self.register_buffer("is_shown", torch.zeros(length, 1, dtype=torch.bool))
        self.is_shown[shown] = True
        self.hidden = nn.Parameter(torch.zeros(W))
        self.position = nn.Parameter(torch.zeros(length, W))
        block = nn.TransformerEncoderLayer(
            W, decoding.heads, 4 * W, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, decoding.blocks, enable_nested_tensor=False)
        self.head = nn.Parameter(torch.zeros(W, V))
        self.bias = nn.Parameter(probe.bias.clone())
        self.prior = nn.Parameter(log_share.clone())
        with torch.no_grad():
            self.head[:C] = root.T.to(probe.weight) @ probe.weight
            for name, parameter in self.blocks.named_parameters():
                if "out_proj" in name or "linear2" in name:
                    parameter.zero_()  # a block that adds nothing

    @classmethod
    def read(cls, state: Mapping[str, Tensor], decoding: Decoding) -> "Inverter":
        """One that was fitted before, of its `state_dict`."""
        C, V, T = len(state["center"]), len(state["bias"]), len(state["position"])
        shown = state["is_shown"][:, 0].nonzero()[:, 0].tolist()
        nothing = Classifier(torch.zeros(C), torch.zeros(C, V), torch.zeros(V))
        inverter = cls(nothing, torch.eye(C), torch.zeros(V), shown, T, decoding)
        inverter.load_state_dict(state)
        return inverter.eval().requires_grad_(False)

    def forward(self, shown: Tensor) -> Tensor:
        """As the class says."""
        x = self.hidden.expand(len(shown), len(self.position), -1).clone()
        read = (shown - self.center) @ self.whiten
        x[:, self.shown] = F.pad(read, (0, x.shape[-1] - read.shape[-1]))
        bias = torch.where(self.is_shown, self.bias, self.prior)
        return self.blocks(x + self.position) @ self.head + bias


def fit_inverter(circuit: Circuit, shown: Slice, windows: Tensor, decoding: Decoding) -> Inverter:
    """Trains an inverter on stories, `(N, T)`, whose outputs are computed batch by batch.

    The same seed gives the same inverter.
    """
    T, device = windows.shape[1], windows.device
    positions = shown.positions(T)
    moments = TokenMoments(len(circuit.vocabulary), shown.channels(circuit.width), device)
    held = max(1, round(HELD_BACK * len(windows)))
    for batch in windows[held:].split(max(1, tokens_at_once(circuit.model) // T)):
        moments.add(shown.select(circuit.of_tokens(batch)), batch[:, positions])
    some = windows[: min(held, FACTOR_EXAMPLES // len(positions) + 1)]
    examples = shown.select(circuit.of_tokens(some)).flatten(0, 1), some[:, positions].flatten()
    log_share = moments.log_share().float()
    probe = calibrated(gaussian(moments, circuit.vocabulary), log_share, *examples)
    metric = token_means(moments, circuit.vocabulary)[1] + METRIC_FLOOR * moments.covariance
    with torch.random.fork_rng():
        torch.manual_seed(decoding.seed)
        inverter = Inverter(probe, metric, log_share, positions, T, decoding).to(device)
    _train(inverter, circuit, shown, windows[held:], decoding)
    return inverter.eval().requires_grad_(False)


def _train(
    inverter: Inverter, circuit: Circuit, shown: Slice, windows: Tensor, decoding: Decoding
) -> None:
    optimiser = torch.optim.AdamW(inverter.parameters(), lr=decoding.rate)
    generator = torch.Generator().manual_seed(decoding.seed)
    for i in range(decoding.steps):
        chosen = torch.randint(len(windows), (decoding.windows,), generator=generator)
        batch = windows[chosen.to(windows.device)]
        outputs = shown.select(circuit.of_tokens(batch))
        progress = (i + 1) / decoding.steps
        optimiser.param_groups[0]["lr"] = decoding.rate * min(
            progress / WARM_UP, (1 - progress) / (1 - WARM_UP)
        )
        with torch.enable_grad():
            F.cross_entropy(inverter(outputs).flatten(0, 1), batch.flatten()).backward()
        nn.utils.clip_grad_norm_(inverter.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()


@torch.no_grad()
def score_inverter(
    circuit: Circuit, shown: Slice, windows: Tensor, inverter: Inverter
) -> tuple[TokenScore, TokenScore]:
    """How well it says the shown (self) and the hidden (non-self) tokens of other stories."""
    V, T = len(circuit.vocabulary), windows.shape[1]
    of_shown, of_hidden = TokenScore(V), TokenScore(V)
    hidden = [t for t in range(T) if t not in set(inverter.shown)]
    for batch in windows.split(max(1, tokens_at_once(circuit.model) // T)):
        logits = inverter(shown.select(circuit.of_tokens(batch)))
        for score, positions in ((of_shown, inverter.shown), (of_hidden, hidden)):
            if positions:
                score.add(logits[:, positions].flatten(0, 1), batch[:, positions].flatten())
    return of_shown, of_hidden


@dataclass(frozen=True)
class Inversion:
    """A task: one trained inverter of a layer's slice."""

    checkpoint: Checkpoint
    stories: ProbeText
    layer: int
    slice: Slice
    decoding: Decoding

    @property
    def cost(self) -> float:
        """How long it is likely to take, in the unit of `Probes.cost`."""
        per_step = 12 * self.decoding.windows / 16 * self.stories.length / 64
        return per_step * (30 + self.decoding.steps) * self.checkpoint.config.d_model

    @property
    def keys(self) -> list[str]:
        """The row's key."""
        about = self.checkpoint.identity
        return [row_key(*about, "inverter", self.layer, str(self.slice), self._settings)]

    def run(self, results: Results) -> list[Row]:
        """One row, with the shown (self) and the hidden (non-self) tokens apart."""
        started = time.perf_counter()
        train, valid = self.stories.load(self.checkpoint)
        circuit = Circuit(self.checkpoint.model, self.layer)
        about = {"probe": "inverter", "layer": self.layer, "slice": str(self.slice)}
        about |= {**self.stories.fit, **asdict(self.decoding)}
        state = fitted(
            results.directory,
            self.checkpoint,
            about,
            [train],
            lambda: fit_inverter(circuit, self.slice, train, self.decoding).state_dict(),
        )
        inverter = Inverter.read(state, self.decoding).to(valid.device)
        scores = score_inverter(circuit, self.slice, valid, inverter)
        hidden = [t for t in range(self.stories.length) if t not in set(inverter.shown)]
        V = self.checkpoint.config.vocab_size
        figures = [
            score.beside(score_unigram(train, valid[:, positions], V)) if positions else None
            for score, positions in zip(scores, (inverter.shown, hidden), strict=True)
        ]
        return [
            {
                "key": self.keys[0],
                "kind": "probe",
                "checkpoint": self.checkpoint.provenance,
                "site": {"layer": self.layer, "part": "block"},
                "slice": str(self.slice),
                "length": self.stories.length,
                "hidden": len(hidden),
                "method": "inverter",
                "settings": self._settings,
                "self": figures[0],
                "nonself": figures[1],
                "tokens_at_once": tokens_at_once(self.checkpoint.model),
                "seconds": round(time.perf_counter() - started, 4),
            }
        ]

    @property
    def _settings(self) -> dict[str, Any]:
        return {**asdict(self.stories), **asdict(self.decoding)}
