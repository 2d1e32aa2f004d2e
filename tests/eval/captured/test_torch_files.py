"""Files of torch.save: tensors by their places, and steps of a generation as one text."""

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eval import RequestError
from eval.captured.files.recognise import read_capture
from tests.said import one_line

S = torch.randn(5, 8)
ITSELF: list[Any] = [S]
ITSELF.append(ITSELF)
BEAMS = {"h": ((S[None],) * 2, (S[None, :1],) * 2), "beam_indices": torch.zeros(2, 3)}
SAVED = {
    "a dictionary": ({"block.1": S, "block.2.scale": S[:, :1], "block.2": S.to(torch.int8),
                      "text": "a"}, ["block.1", "block.2"]),
    "a list in it": ({"hidden_states": [S, S], "input_ids": torch.arange(5)},
                     ["hidden_states.0", "hidden_states.1"]),
    "a cache": ({"cache": {"key": ((S,), (S[None],))}}, ["cache.key.0.0", "cache.key.1.0"]),
    "a tuple": ((S, S.bfloat16()), ["a.0", "a.1"]),
    "a tensor": (S.t().requires_grad_(), ["a"]),
    "a conjugate": (torch.complex(S, S).conj(), ["a"]),
    "steps of generate": ({"h": ((S[None], S[None]), (S[None, :1], S[None, :1]))}, ["h.0", "h.1"]),
    "steps from one token": ({"h": ((S[None, :1],) * 2,) * 3}, ["h.0", "h.1"]),
    "prompts of one token": ({"h": [(S[None, :1],) * 2] * 2},
                             ["h.0.0", "h.0.1", "h.1.0", "h.1.1"]),
    "rows of no steps": ({"h": ((S[:1],) * 2,) * 2}, ["h.0.0", "h.0.1", "h.1.0", "h.1.1"]),
    "steps of a hook": ([S[None], S[None, :1], S[None, :1]], ["a"]),
    "steps in a dictionary": ({"b": {"c": [S[None], S[None, :1]]}}, ["b.c"]),
    "dictionaries of steps": ([{"b": S[None], "n": 1}, {"b": S[None, :1], "n": 2}], ["a.b"]),
    "dictionaries of layers": ({"b": [{"c": (S[None],) * 2}, {"c": (S[None, :1],) * 2}]},
                               ["b.c.0", "b.c.1"]),
    "dictionaries of prompts": ([{"b": S}, {"b": S}], ["a.0.b", "a.1.b"]),
    "rows of prompts": ([S[None, :1], S[None, :1]], ["a.0", "a.1"]),
    "no steps": ((((S[None],), (S[None],))), ["a.0.0", "a.1.0"]),
    "lists of none": ({"h": ((), ()), "x": S}, ["x"]),
    "hooks": ({"blocks.0.hook_out": S[None], "blocks.0.attn.hook_pattern": S}, ["block.1"]),
    "prompts of a hook": ({"blocks.3.hook_out": [S, S]},
                          ["blocks.3.hook_out.0", "blocks.3.hook_out.1"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAVED)
def test_tensors_of_torch_save_are_read_where_the_flag_says_so(tmp_path, kind):
    held, names = SAVED[kind]
    torch.save(held, tmp_path / "a.pt")
    outputs = read_capture(tmp_path / "a.pt", torch_file=True).outputs
    assert list(outputs) == names
    for entry in outputs.values():
        held = entry.read().outputs
        assert held.shape[-1] in (5, 8)
        assert not held.is_conj()


def test_the_steps_of_a_generation_are_one_text(tmp_path, capsys):
    states = [torch.randn(2, rows, 8).split(4, dim=-1) for rows in (5, 1, 1)]
    held = {"a": states, "b": [a for a, _ in states], "sequences": torch.arange(16).view(2, 8)}
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    torch.save(held | {"attention_mask": mask}, tmp_path / "a.pt")
    outputs = read_capture(tmp_path / "a.pt", torch_file=True).outputs
    joined = torch.cat([outputs[f"a.{layer}"].read().outputs for layer in (0, 1)], dim=-1)
    assert torch.equal(joined, torch.cat([torch.cat(step, dim=-1) for step in states], dim=1))
    assert torch.equal(outputs["b"].read().outputs, outputs["a.0"].read().outputs)
    masks: list[Any] = [entry.read().mask for entry in outputs.values()]
    assert all(x.tolist() == [[0, 0] + [1] * 5, [1] * 7] for x in masks)
    said = capsys.readouterr().err
    assert "a: the rows of 3 steps of generation are joined" in said
    assert "sequences: by name the tokens themselves, in clear" in said


def test_scales_in_a_list_are_of_the_tensors_at_their_places(tmp_path):
    """As speculators packs a sample: they were left out, and 1 was taken in silence."""
    scales = [torch.full((5, 1), layer + 1.0) for layer in range(4)]
    held = {"hidden_states": [S.to(torch.float8_e4m3fn)] * 4, "hidden_states_scales": scales}
    more = {"input_ids": torch.arange(5), "loss_mask": torch.ones(5)}
    torch.save(held | more, tmp_path / "a.pt")
    outputs = read_capture(tmp_path / "a.pt", torch_file=True).outputs
    assert list(outputs) == [f"hidden_states.{layer}" for layer in range(4)]
    for entry, scale in zip(outputs.values(), scales, strict=True):
        raw: Any = entry.read()
        assert torch.equal(raw.scale, scale)


FIRST, LAST = [[0, 0, 1, 1, 1]], [[1, 1, 0, 0, 0]]
M, N = torch.tensor(FIRST), torch.tensor(LAST)
INPUTS = {"inputs": {"input_ids": torch.ones_like(M), "attention_mask": M}}
MASKED = {
    "dictionaries": ([{"h": S, "attention_mask": M}, {"h": S, "attention_mask": N}], [FIRST, LAST]),
    "lists": ({"h": [S, S], "attention_mask": [M, N]}, [FIRST, LAST]),
    "beside the tokens": (INPUTS | {"h": (S[None], S[None])}, [FIRST, FIRST]),
    "beside a hook": (INPUTS | {"blocks.1.hook_out": S[None]}, [FIRST]),
    "steps": (INPUTS | {"h": [S[None], S[None, :1]]}, [[[0, 0, 1, 1, 1, 1]]]),
    "of another tensor": ({"a": S, "a.attention_mask": M, "b": S}, [FIRST, None]),
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKED)
def test_a_mask_in_a_list_or_dictionary_is_of_its_prompts(kind, tmp_path, capsys):
    """It was left out, and rows of padding were searched."""
    held, masks = MASKED[kind]
    torch.save(held, tmp_path / "a.pt")
    outputs = read_capture(tmp_path / "a.pt", torch_file=True).outputs
    found = [entry.read().mask for entry in outputs.values()]
    assert [mask if mask is None else mask.tolist() for mask in found] == masks
    assert "attention_mask" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_nobody_is_advised_to_run_what_a_file_holds(tmp_path):
    """Torch's own message does, of what it cannot read."""
    torch.save({"a": S}, tmp_path / "a.pt", pickle_protocol=4)
    with pytest.raises(RequestError, match=r"\(\w.*; save a plain dict") as caught:
        read_capture(tmp_path / "a.pt", torch_file=True)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"a.0": S, "a": [S]}, "a.0 is the name of two tensors"),
        ({"a": {1: S, "1": S}}, "a.1 is the name of two tensors"),
        ({"a": [[[[S]]]]}, "no tensors of torch.save (dict)"),
        ({"hidden_states": (S,), "beam_indices": torch.zeros(2, 3)}, "of a beam search"),
        ({"out": BEAMS}, "of a beam search"),
        ([BEAMS], "of a beam search"),
        ([{"a": BEAMS}, {"a": BEAMS}], "of a beam search"),
        ({"out": BEAMS | {"beam_indices": None}}, ""),
        ({"text": "a"}, "no tensors of torch.save (dict); save a plain dict"),
        ({"a": S, "loss": np.float64(1)}, "multiarray.scalar; save a plain dict"),
        ({"model__layers__1": S, "more": S}, "beside captures of vLLM-Hook"),
        ({"a": ITSELF}, ""),
    ],
)
def test_what_torch_save_wrote_is_read_or_refused_in_one_line(tmp_path, held, said):
    torch.save(held, tmp_path / "a.pt")
    with one_line(RequestError, said) if said else contextlib.nullcontext():
        read_capture(tmp_path / "a.pt", torch_file=True)
    save_file({"a": S}, tmp_path / "a.safetensors")
    for place in ("a.safetensors", "."):
        with one_line(RequestError, "no file of torch.save"):
            read_capture(tmp_path / place, torch_file=True)


def test_tensors_that_lie_too_deep_are_named(tmp_path, capsys):
    torch.save({"a": [[{"b": [S]}, ["text"]], S], "c": [ITSELF]}, tmp_path / "a.pt")
    outputs = read_capture(tmp_path / "a.pt", torch_file=True).outputs
    assert list(outputs) == ["a.1", "c.0.0", "c.0.1.0"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert line.endswith(": a.0.0.b, c.0.1.1")


@pytest.mark.parametrize("axes", [1, 2])
def test_steps_of_one_prompt_without_its_axis_are_one_text(axes, tmp_path):
    """Each later row was read as a prompt of its own, or not read."""
    states = torch.randn(1, 7, 8)
    later = [states[0, t] if axes == 1 else states[0, t : t + 1] for t in (5, 6)]
    held = {"h": [states[0, :5], *later], "attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}
    torch.save(held, tmp_path / "a.pt")
    raw: Any = read_capture(tmp_path / "a.pt", torch_file=True).outputs["h"].read()
    assert torch.equal(raw.outputs, states)
    assert raw.mask.tolist() == [[0] + [1] * 6]


def test_logits_of_a_generation_are_rows_of_their_prompts(tmp_path, capsys):
    """Rows of several prompts at one step were read as positions of one prompt."""
    logits = torch.randn(2, 3, 8)
    torch.save({"logits": logits.unbind(1), "x": [*logits]}, tmp_path / "a.pt")
    outputs = read_capture(tmp_path / "a.pt", torch_file=True).outputs
    assert list(outputs) == ["logits", "x.0", "x.1"]
    assert torch.equal(outputs["logits"].read().outputs, logits)
    assert "--first" in capsys.readouterr().err
