"""A mask beside the outputs of one prompt, which have no axis of prompts."""

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eval import activations
from eval.__main__ import main
from tests.eval.inversion.search_cases import SHORT


class Case(NamedTuple):
    """Outputs of one prompt, by its states `(layers, T, D)` and values `(T, heads, width)`."""

    make: Callable[[Tensor, Tensor], Tensor]
    tokens: int
    part: str = "block"


CASES = {
    "(T, D)": Case(lambda states, _: states[1], 0),
    "(layers, T, D)": Case(lambda states, _: states, 1),
    "(T, layers, D)": Case(lambda states, _: states.transpose(0, 1), 0),
    "(T, heads, width)": Case(lambda _, values: values, 0, "value"),
    "(heads, T, width)": Case(lambda _, values: values.transpose(0, 1), 1, "value"),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("shape", [(1, -1), (-1,)])
def test_a_mask_of_one_prompt_is_read(
    kind, shape, directories, opened, opened_once, tmp_path, capsys
):
    """It was not read, and a later line advised to give one."""
    case, path = CASES[kind], directories["llama"]
    held = load_file(f"{path}/states.safetensors")
    states = torch.stack([held["1"][0], held["2"][0]])
    (batch,) = activations(opened["llama"], SHORT[:1], "value.2")
    values = batch.outputs["value.2"][0].unflatten(-1, (2, -1))
    outputs = case.make(states, values)
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([outputs, noise.narrow(case.tokens, 0, 4)], dim=case.tokens)
    mask = (torch.arange(16) < 12).long().view(shape)
    save_file({"x": padded.contiguous(), "attention_mask": mask}, tmp_path / "c.safetensors")
    words = ["recover", str(tmp_path / "c.safetensors"), "--model", f"hf:{path}"]
    words += ["--corpus", "toy:400", "--format", "json", "--layer", "2", "--part", case.part]
    assert main(words) == 0
    said = capsys.readouterr()
    (row,) = json.loads(said.out)
    assert (row["text"], row["padding"]) == (SHORT[0], [12, 13, 14, 15])
    assert "not read" not in said.err
