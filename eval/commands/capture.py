"""The command `capture`: hidden states of texts in files, as vLLM writes them."""

from collections.abc import Sequence

from eval.commands.flags import Layers, Model, Positive, listed
from eval.commands.result import Result, command


@command
def capture(
    model: Model,
    text: str | Sequence[str],
    out: str = "captured",
    layers: Layers = "all",
    batch_size: Positive | None = None,
    device: str = "auto",
) -> Result:
    """Writes the hidden states of texts, with their token ids, a file for each text.

    `python -m eval recover` reads such files, and those that vLLM writes alike.

    Args:
        model: a model directory, or a run (RUN, RUN@STEP, RUN@best), remnant:NAME or hf:NAME
        text: the texts, one or more
        out: directory for text-0.safetensors and so on, with hidden_states (tokens, layers, width)
            and token_ids; one that has no such files yet
        layers: all, last, or numbers; 0 is the embedding
        batch_size: texts that the model reads at once; default: as many as fit into memory
    """
    from eval.sites.activations import FILE, activations

    rows = list[dict[str, object]]()
    given = {"device": device, "batch_size": batch_size, "out": out}
    for batch in activations(model, listed(text), listed(layers), **given):
        rows += [
            {"file": f"{out}/{FILE.format(number)}", "tokens": T, "layers": len(batch.outputs)}
            for number, T in enumerate(batch.lengths.tolist(), start=len(rows))
        ]
    lines = [f"{row['file']}: {row['tokens']} tokens, {row['layers']} layers" for row in rows]
    return Result(rows, "\n".join(lines))
