"""What states captured from SmolLM2 by plain transformers give away: docs/results/audit.md.

    python -m scripts.experiments.audit capture HF_MODEL SENTENCES.txt STATES.safetensors \
        [DTYPE [TOKENS]]
    python -m scripts.experiments.audit recover MODEL STATES.safetensors CORPUS OUT.jsonl \
        [--at-once N] [CASE ...]

`capture` imports nothing of ours; the model computes in float32, or in DTYPE (bfloat16). A sentence
is cut to its first TOKENS (16), so that all go in one tensor `(B, T, width)`, or `(B, heads, T,
width)` of keys and values. `recover` asks one case after another, N sentences in one call (all);
what is in OUT is not asked again. Cases: PART.LAYER.FORMAT, and ?PART.FORMAT, whose site is to be
found.
"""

import resource
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tyro.conf import Positional
from tyro.extras import subcommand_cli_from_dict

LAYERS = 1, 15, 30
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CASES = (
    *(f"block.{layer}.{form}" for form in (*FORMATS, "int8c", "int8t") for layer in LAYERS),
    *(f"{part}.{layer}.bf16" for part in ("rotated_key", "value") for layer in LAYERS),
    *(f"?{part}.bf16" for part in ("block", "value")),
)


@torch.no_grad()
def capture(
    model_name: Positional[str], sentences: Positional[Path], out: Positional[Path],
    dtype: Positional[str] = "float32", length: Positional[int] = 16,
) -> None:  # fmt: skip
    """Saves the tokens of sentences, and the outputs, keys and values of some layers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    lines = sentences.read_text(encoding="utf-8").splitlines()
    tokens = torch.tensor([tokenizer(line)["input_ids"][:length] for line in lines])
    last: list[Tensor] = []
    block = model.model.layers[-1]  # the last hidden state of transformers is behind the norm
    block.register_forward_hook(
        lambda module, given, output: last.append(output if torch.is_tensor(output) else output[0])
    )
    found = model(tokens, output_hidden_states=True, use_cache=True)
    states = {"tokens": tokens}
    for layer in range(1, len(model.model.layers) + 1):
        cache = found.past_key_values.layers[layer - 1]
        is_last = layer == len(model.model.layers)
        states[f"block.{layer}"] = last[0] if is_last else found.hidden_states[layer]
        states[f"rotated_key.{layer}"], states[f"value.{layer}"] = cache.keys, cache.values
    save_file({name: state.contiguous() for name, state in states.items()}, out)


def store(state: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
    """A tensor as a format stores it; codes, as int8t, with a scale for each channel or token."""
    if form in FORMATS:
        return state.to(FORMATS[form]), None
    levels = 2 ** (int(form[3:-1]) - 1) - 1
    over, by_token = ((2,), True) if form.endswith("t") else ((0, 1), False)
    scale = state.abs().amax(dim=over, keepdim=by_token) / levels
    return (state / scale).round().to(torch.int8), scale


def recover_case(
    model: Any, states: dict[str, Tensor], case: str, rows: slice, corpus: str
) -> dict[str, Any]:
    """One line of the results: how many tokens of some sentences are right, certain, or listed."""
    from eval import recover

    unaided = case.startswith("?")
    site, _, form = case.lstrip("?").rpartition(".")
    part, _, layer = site.partition(".")
    outputs, scale = store(states[site][rows], form)
    started = time.perf_counter()
    where = {} if unaided else {"layer": int(layer), "part": part}
    found = recover(model, outputs, scale=scale, corpus=corpus, **where)
    seconds = time.perf_counter() - started
    right = found.tokens == states["tokens"][rows]
    listed = [int(states["tokens"][rows][b, t]) in found.alike[b].get(t, [])
              for b, t in (~right).nonzero().tolist()]  # fmt: skip
    certain = torch.tensor(
        [[proof is not None for proof in proofs] for proofs in found.certificates]
    )
    return {
        "case": case, "first": rows.start, "sentences": len(right), "asked": site,
        "site": found.site, "computed": found.computed, "tokens": right.numel(),
        "right": int(right.sum()),
        "listed": sum(listed), "certain": int(certain.sum()),
        "falsely_certain": int((certain & ~right).sum()),
        "exact": int(right.all(dim=1).sum()), "seconds": seconds,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "evaluations": sum(found.evaluations), "threads": torch.get_num_threads(),
    }  # fmt: skip


def ask(
    model_name: Positional[str], captured: Positional[Path], corpus: Positional[str],
    out: Positional[Path], cases: Positional[tuple[str, ...]] = CASES, at_once: int | None = None,
) -> None:  # fmt: skip
    """Recovers the cases that are not there yet, so many sentences in one call."""
    from eval import open_model
    from scripts.experiments.shared import add_rows, read_rows

    states, known = load_file(captured), {(row["case"], row["first"]) for row in read_rows(out)}
    model, B = open_model(model_name), len(states["tokens"])
    for case in cases:
        alone = case.startswith("?")  # a site is found for one sentence at a time
        size = 1 if alone else at_once or B
        for first in range(0, B, size):
            name = f"?{case[1:-5]}.{LAYERS[first % 3]}.bf16" if alone else case
            if (name, first) in known:
                continue
            row = recover_case(model, states, name, slice(first, first + size), corpus)
            add_rows(out, row)
            print(row, flush=True)


if __name__ == "__main__":
    subcommand_cli_from_dict({"capture": capture, "recover": ask})
