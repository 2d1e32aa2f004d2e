"""A small sparse autoencoder of a model's stream, fitted on stories, and the features it finds.

Top-k (Gao et al., 2406.04093): of F > D features only the k strongest speak for a position. One is
fitted for each of a few layers, all of them in the same products.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from eval import RequestError, plots
from eval.artefacts import fitted
from eval.lenses.features import active_in_text, add_overlap, draw, retelling_tokens, shared_words
from eval.lenses.lens import Documents, Finding, Request, lens
from eval.lenses.stories import stories, whole_windows
from eval.lenses.trace import spaced_layers, streams_of
from eval.models import Checkpoint

HELD_OUT = 0.1  # of the windows, for the figures
LAYERS = 3  # at most so many, evenly spaced
LEAST = 1000  # tokens below which nothing is fitted
WEIGHTS = ("centre", "scale", "encoder", "bias", "decoder")
QUALITY = ("explained", "active", "dead")


@dataclass(frozen=True)
class SparseFit:
    """How an autoencoder is fitted."""

    expansion: int = 4  # features for each of the stream's
    active: int = 16  # of them at a position
    epochs: int = 2  # over the text
    batch: int = 256  # positions of a step
    rate: float = 4e-3  # Adam's, falling linearly to zero
    seed: int = 0  # of the start and the order


@dataclass(frozen=True)
class SparseAutoencoder:
    """S autoencoders side by side, of S streams."""

    centre: Tensor  # of each stream, (S, 1, D)
    scale: Tensor  # its root mean square around that, (S, 1, 1)
    encoder: Tensor  # (S, D, F)
    bias: Tensor  # (S, 1, F)
    decoder: Tensor  # (S, F, D), rows of length 1
    active: int  # features at a position

    def encode(self, streams: Tensor) -> Tensor:
        """`(S, N, D)` to features `(S, N, F)`, all but the strongest zero."""
        values = (streams - self.centre) / self.scale @ self.encoder + self.bias
        top = values.topk(min(self.active, values.shape[-1]), dim=-1)
        return torch.zeros_like(values).scatter(-1, top.indices, top.values.relu())

    def decode(self, features: Tensor) -> Tensor:
        """`(S, N, F)` to streams `(S, N, D)`."""
        return features @ self.decoder * self.scale + self.centre


def fit_sparse(streams: Tensor, fit: SparseFit = SparseFit()) -> SparseAutoencoder:
    """Fits autoencoders to streams `(S, N, D)`."""
    S, N, D = streams.shape
    centre = streams.mean(1, keepdim=True)
    scale = (streams - centre).square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-12)
    data = (streams - centre) / scale
    generator = torch.Generator().manual_seed(fit.seed)
    decoder = torch.randn(S, fit.expansion * D, D, generator=generator).to(streams)
    decoder = torch.nn.functional.normalize(decoder, dim=-1)
    encoder, bias = decoder.mT.clone(), torch.zeros_like(decoder[..., 0])[:, None]
    parameters = [p.requires_grad_() for p in (encoder, bias, decoder)]
    optimiser = torch.optim.Adam(parameters, lr=fit.rate, fused=True)
    steps = max(1, fit.epochs * N // fit.batch)
    with torch.enable_grad():
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = fit.rate * (1 - step / steps)
            picks = torch.randint(N, (min(fit.batch, N),), generator=generator)
            x = data[:, picks.to(data.device)]
            top = (x @ encoder + bias).topk(min(fit.active, bias.shape[-1]), dim=-1)
            loss = (_sum_rows(decoder, top.indices, top.values.relu()) - x).square()
            loss = loss.mean((1, 2)).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                decoder /= decoder.norm(dim=-1, keepdim=True)
    encoder, bias, decoder = (p.detach() for p in parameters)
    return SparseAutoencoder(centre, scale, encoder, bias, decoder, fit.active)


def _sum_rows(matrix: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of `(S, F, D)`, a few of many: `(S, N, k)` of them to `(S, N, D)`."""
    S, F, _ = matrix.shape
    rows = rows + torch.arange(0, S * F, F, device=rows.device)[:, None, None]
    summed = torch.nn.functional.embedding_bag(
        rows.flatten(0, 1),
        matrix.flatten(0, 1),
        per_sample_weights=weights.flatten(0, 1),
        mode="sum",
    )
    return summed.unflatten(0, (S, -1))


def sparse_quality(autoencoder: SparseAutoencoder, streams: Tensor) -> dict[str, Tensor]:
    """How each of S autoencoders does on streams `(S, N, D)`, best not those of the fit, `(S,)`.

    The share of the variance that is explained, features active at a position in the mean, and the
    share of the features that are never active.
    """
    features = autoencoder.encode(streams)
    missed = (autoencoder.decode(features) - streams).square().sum((1, 2))
    whole = (streams - streams.mean(1, keepdim=True)).square().sum((1, 2)).clamp_min(1e-12)
    on = features > 0
    values = 1 - missed / whole, on.sum(-1).float().mean(1), 1 - on.any(1).float().mean(1)
    return dict(zip(QUALITY, values, strict=True))


def _draw_quality(documents: Documents) -> list[plots.Figure]:
    measured = documents.figures("sparse explained", "sparse dead")
    for record in measured:
        record["share"] = "of variance explained" if "expl" in record["figure"] else "of dead units"
    return [
        *draw(documents),
        plots.Figure(
            "sparse-quality",
            "How good is the autoencoder?",
            "On text that it was not fitted on: the share of the stream's variance that it "
            "explains, and of its features those that are never active.",
            plots.by_model(plots.lines(measured, "layer", "share", "share"), measured),
        ),
    ]


@lens(
    "sparse", "A sparse autoencoder's features", figures=_draw_quality, texts=shared_words, order=15
)
def find(checkpoint: Checkpoint, request: Request) -> Finding:
    """Features of a sparse autoencoder, and whether retold stories share them."""
    if request.tokens < LEAST:
        raise RequestError(
            f"--tokens {request.tokens}: too few to fit a sparse autoencoder on; give {LEAST:,} "
            "or more"
        )
    model, finding = checkpoint.model, Finding()
    layers = spaced_layers(len(model.blocks), LAYERS)
    count = whole_windows(checkpoint, request, 2, "a sparse autoencoder needs")
    text = stories(checkpoint, request, "fitting", count)
    kept, asked = max(1, round(count * HELD_OUT)), SparseFit(seed=request.seed)

    def fit() -> dict[str, Tensor]:
        streams = torch.cat([part[layers] for _, part in text.batches()], dim=1)
        trained = fit_sparse(streams[:, kept:].flatten(1, 2), asked)
        quality = sparse_quality(trained, streams[:, :kept].flatten(1, 2))
        return {name: getattr(trained, name) for name in WEIGHTS} | quality

    about = {"lens": "sparse", "layers": layers, "held out": kept, **asdict(asked)}
    tensors = fitted(request.store, checkpoint, about, [text.tokens], fit)
    for name in QUALITY:
        finding.rows(f"sparse {name}", tensors[name], {"layer": layers})
    quality = torch.stack([tensors[name] for name in QUALITY], dim=1)
    finding.array("quality", quality, {"layer": layers, "measured": QUALITY})
    weights = {name: tensors[name] for name in WEIGHTS}
    autoencoder = SparseAutoencoder(**weights, active=asked.active)
    tokens = retelling_tokens(checkpoint)
    features = autoencoder.encode(streams_of(model, tokens)[layers].flatten(1, 2))
    active = {
        layer: active_in_text(values, autoencoder.active)
        for layer, values in zip(layers, features.unflatten(1, tokens.shape), strict=True)
    }
    add_overlap(finding, tokens, active, checkpoint.config.vocab_size, "sparse features")
    finding.notes |= {
        "features": autoencoder.decoder.shape[1],
        "tokens": text.tokens[kept:].numel(),
    }
    return finding
