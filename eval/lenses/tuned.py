"""The tuned lens: the logit lens after a learnt affine map of each layer's stream.

Belrose et al., "Eliciting Latent Predictions from Transformers with the Tuned Lens", 2303.08112.
Each map is fitted on stories by least squares to the last stream, in closed form (theirs descends
on the divergence). A layer keeps the identity, and its lens is the plain one, unless the map lowers
D(output || layer) on stories held back, beyond what chance explains. The figures are of a third
part of the text.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from arch import LanguageModel
from eval.lenses.lens import Checkpoint, PromptBatch, Request, Table, lens
from eval.lenses.logit import Read, add_readings, charts, draw_words, read_layers
from eval.lenses.stories import begun_in, stories, whole_windows
from eval.lenses.trace import trace
from eval.rows.fits import fitted

HELD = 16  # windows to choose on, at most those fitted on, and as many to report on
SURE = 2.0  # standard errors by which a map has to be better than the identity
RIDGE = 1e-3  # of each feature's own variance, as a few are far larger than the others
PART = 1 << 22  # numbers of streams that are computed at once


def tuned_read(model: LanguageModel, weight: Tensor, bias: Tensor) -> Read:
    """Logits of a layer's stream after its map, `weight` `(n, D, D)` and `bias` `(n, D)`.

    The last layer has none.
    """

    def read(layer: int, stream: Tensor) -> Tensor:
        mapped = stream @ weight[layer] + bias[layer] if layer < len(weight) else stream
        return model.logits(mapped)

    return read


def fit_tuned(
    model: LanguageModel, train: Tensor, choice: Tensor, report: Tensor
) -> dict[str, Tensor]:
    """Fits on the first windows `(N, T)`, chooses on the second, and reports on the third.

    Returns:
        `weight` and `bias`; which layers have `learnt` a map that is not the identity, `(n,)`; and
        D(output || layer) of the `plain` and the `tuned` lens in bits, by window, `(N, n)`.
    """
    weight, bias = least_squares(model, train)
    same = torch.eye(weight.shape[-1]).to(weight).expand_as(weight), torch.zeros_like(bias)
    gain = divergences(model, *same, choice) - divergences(model, weight, bias, choice)
    learnt = gain.mean(0) > SURE * gain.std(0) / len(gain) ** 0.5
    weight = torch.where(learnt[:, None, None], weight, same[0])
    bias = bias * learnt[:, None]
    plain, tuned = divergences(model, *same, report), divergences(model, weight, bias, report)
    return {"weight": weight, "bias": bias, "learnt": learnt, "plain": plain, "tuned": tuned}


@torch.no_grad()
def least_squares(model: LanguageModel, windows: Tensor) -> tuple[Tensor, Tensor]:
    """The affine map of each stream that comes nearest to the last one (ridge regression).

    Of `(N, T)` tokens; weights `(n, D, D)`, biases `(n, D)`.
    """
    head, n = model.head.weight, len(model.blocks)
    D, N = head.shape[1], windows.numel()
    gram = torch.zeros(n, D + 1, D + 1, dtype=torch.float64, device=head.device)
    toward = gram.new_zeros(n, D + 1, D)
    for batch in windows.split(max(1, PART // (windows.shape[1] * (n + 1) * D))):
        streams = trace(model, batch).streams.flatten(1, 2).double()
        inputs = F.pad(streams[:-1], (0, 1), value=1.0)  # the last feature is the constant
        gram += inputs.mT @ inputs
        toward += inputs.mT @ streams[-1]
    squares, sums = gram.diagonal(dim1=1, dim2=2)[:, :D], gram[:, D, :D]
    variance = squares / N - (sums / N).square()
    squares += N * RIDGE * variance.clamp(min=1e-8 * squares / N + 1e-12)  # none is quite constant
    maps = torch.linalg.solve(gram, toward).to(head.dtype)
    return maps[:, :D], maps[:, D]


def divergences(model: LanguageModel, weight: Tensor, bias: Tensor, windows: Tensor) -> Tensor:
    """Mean D(output || layer) in bits over every window's positions, `(N, n)`."""
    found = read_layers(trace(model, windows).streams, [], tuned_read(model, weight, bias))
    return found["divergence"][:-1].mean(-1).T


@lens(
    "tuned",
    "The tuned lens",
    order=3,
    main=(("top token is the output's", {}), ("divergence on other stories", {"method": "tuned"})),
    charts=charts("tuned"),
    draw=partial(draw_words, "tuned"),
)
def measure(checkpoint: Checkpoint, batch: PromptBatch, request: Request, table: Table) -> None:
    """What each layer's stream says as the output, after a fitted affine map."""
    model, count = checkpoint.model, whole_windows(checkpoint, request, 2, "the tuned lens needs")
    held = min(HELD, count)
    text = stories(checkpoint, request, "fitting", count + held)
    text = text[:count], text[count:], stories(checkpoint, request, "evaluation", held)
    fit = partial(fit_tuned, model, *text)
    about = {"lens": "tuned", "ridge": "by feature"}  # earlier fits had one ridge for all
    found = fitted(request.store, checkpoint, about, text, fit)
    read = tuned_read(model, found["weight"], found["bias"])
    add_readings(checkpoint, batch, request, table, read)
    methods, layers = ("plain", "tuned"), range(len(model.blocks))
    judged, name = torch.stack([found[method] for method in methods]), "divergence on other stories"
    story = begun_in(checkpoint, request, held)
    table.add(name, judged, method=methods, story=story, layer=layers)
    plain = [str(layer) for layer, learnt in enumerate(found["learnt"].tolist()) if not learnt]
    if plain:
        title = "layers that keep the identity, as no map was better"
        table.say(title, ["layers"], [[" ".join(plain)]])
