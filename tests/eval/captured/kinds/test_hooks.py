"""Activations by the names of TransformerLens' hooks: a dictionary, and SAELens' folder."""

import contextlib
import json

import pytest
import torch
from safetensors.torch import save_file

from eval import RequestError
from eval.captured.files.recognise import read_capture
from tests.said import one_line

HOOK = "blocks.1.hook_resid_post"


def write(path, held):
    save_file({name: tensor.contiguous().clone() for name, tensor in held.items()}, path)
    return path


def write_folder(path, engine, ids=True, ragged=False, hook=HOOK):
    """Rows of 10 tokens, those of the text's second half shuffled to the front."""
    import datasets

    rows = [engine.states[2][:10], engine.states[2][:8]]
    held = {hook: [row.tolist() for row in (rows[::-1] if ragged else [rows[0]] * 2)]}
    if ids:
        held["token_ids"] = [engine.ids[:10].tolist()] * 2
    shape = datasets.Array2D((None if ragged else 10, 32), "float32")
    kinds = {hook: shape, "token_ids": datasets.List(datasets.Value("int32"))}
    features = datasets.Features({name: kinds[name] for name in held})
    datasets.Dataset.from_dict(held, features).save_to_disk(path)
    return path


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("name", "site", "part"),
    [
        ("hook_resid_post", "block.2", lambda engine: engine.states[2]),
        ("hook_resid_pre", "block.1", lambda engine: engine.states[1]),
        ("attn.hook_rot_k", "rotated_key.2", lambda engine: engine.keys[1]),
        ("attn.hook_v", "value.2", lambda engine: engine.values[1]),
        ("hook_out", "block.2", lambda engine: engine.states[2]),
        ("hook_in", "block.1", lambda engine: engine.states[1]),
        ("attn.v.hook_out", "value.2", lambda engine: engine.values[1]),
        ("attn.v.hook_out", "value.2", lambda engine: engine.values[1].flatten(1)),
        ("attn.hook_v", "value.2", lambda engine: engine.values[1].flatten(1)),
    ],
)
def test_a_hook_says_the_site(engine, ask, tmp_path, name, site, part):
    held = {f"blocks.1.{name}": part(engine)[None], "blocks.1.hook_mlp_out": torch.ones(1, 2, 3)}
    code, (row,), said = ask(write(tmp_path / "a.safetensors", held))
    assert (code, row["site"], row["text"]) == (0, site, engine.text)
    assert "not read: blocks.1.hook_mlp_out" in said


@pytest.mark.first(1)
@pytest.mark.parametrize("hook", ["attn.hook_v", "attn.v.hook_out"])
def test_heads_of_one_prompt_are_told_by_the_width(engine, ask, tmp_path, hook):
    held = {f"blocks.1.{hook}": engine.values[1], "token_ids": engine.ids[None]}
    code, (row,), _ = ask(write(tmp_path / "a.safetensors", held), "--verify")
    assert (code, row["site"], row["text"], row["differs"]) == (0, "value.2", engine.text, [])


def test_a_whole_cache_names_each_site_twice(engine, ask, tmp_path):
    held = {f"blocks.{n}.hook_resid_post": engine.states[n + 1][None] for n in (0, 1)}
    held |= {f"blocks.{n}.hook_resid_pre": engine.states[n][None].clone() for n in (0, 1)}
    _, rows, _ = ask(write(tmp_path / "a.safetensors", held))
    assert {(row["site"], row["text"]) for row in rows} == {
        (f"block.{n}", engine.text) for n in (0, 1, 2)
    }
    assert len(rows) == 3
    held["blocks.1.hook_resid_pre"] += 1
    found = read_capture(write(tmp_path / "b.safetensors", held))
    assert set(found.outputs) == {"block.0", "block.2"}
    assert "two hooks of block.1 differ: neither is read" in found.kind
    with one_line(RequestError, "two hooks of block.1 differ"):
        both = {name: held[name] for name in held if "0.hook_resid_post" in name or "1" in name}
        del both["blocks.1.hook_resid_post"]
        read_capture(write(tmp_path / "c.safetensors", both))


@pytest.mark.first(1)
@pytest.mark.parametrize("hook", [HOOK, "model.layers.1", "transformer.h.1"])
def test_a_folder_of_rows_gives_their_text(engine, ask, tmp_path, hook):
    """The tokens beside a module's outputs were passed over, and its site was searched for."""
    folder = write_folder(tmp_path / "a", engine, hook=hook)
    assert [row["text"] for row in ask(folder)[1]] == [engine.text[:10]] * 2
    code, rows, _ = ask(folder, "--verify")
    assert code == 0
    assert [(row["site"], row["text"], row["differs"]) for row in rows] == [
        ("block.2", engine.text[:10], [])
    ] * 2
    code, rows, _ = ask(write_folder(tmp_path / "b", engine, ids=False, hook=hook))
    assert [row["text"] for row in rows] == [engine.text[:10]] * 2


def test_ids_beside_the_hooks_of_one_file_are_read(engine, ask, tmp_path):
    """They were passed over there; those of fewer positions were taken for the text."""
    states, ids = engine.states[2][None], engine.ids[None]
    file = write(tmp_path / "a.safetensors", {HOOK: states, "token_ids": ids})
    code, (row,), said = ask(file)
    assert (code, row["text"]) == (0, engine.text)
    code, (row,), _ = ask(file, "--verify")
    assert (code, row["site"], row["differs"]) == (0, "block.2", [])
    cut = write(tmp_path / "cut.safetensors", {HOOK: states[:, 5:], "token_ids": ids})
    assert ask(cut)[1][0]["text"] == engine.text
    code, rows, said = ask(cut, "--verify")
    assert (code, rows) == (2, None)
    assert "15 of its 20 tokens" in said


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["file", "heads", "folder", "steps"])
def test_a_mask_beside_hooks_leaves_padding_out(engine, ask, tmp_path, kind):
    """It was not read: the rows of padding were searched, and the ids shifted."""
    import datasets

    part, name = engine.states[2], HOOK
    if kind == "heads":
        part, name = engine.values[1], "blocks.1.attn.hook_v"
    noise = torch.randn(part.shape, generator=torch.Generator().manual_seed(0))
    held = {
        name: torch.stack([part, torch.cat([noise[:8], part[:12]])]),
        "attention_mask": torch.ones(2, 20, dtype=torch.long),
        "token_ids": torch.stack([engine.ids, torch.cat([engine.ids[12:], engine.ids[:12]])]),
    }
    held["attention_mask"][1, :8] = 0
    path = tmp_path / "a"
    if kind == "folder":
        datasets.Dataset.from_dict({n: x.tolist() for n, x in held.items()}).save_to_disk(path)
    elif kind == "steps":
        steps = held[name].split([18, 1, 1], dim=1)
        mask = held["attention_mask"][:, :18]
        torch.save(held | {name: [*steps], "attention_mask": mask}, path)
    else:
        write(path, held)
    words = ["--torch-file"] * (kind == "steps")
    code, rows, said = ask(path, "--verify", *words)
    assert code == 0
    assert [row["text"] for row in rows] == [engine.text, engine.text[:12]]
    assert [(row["differs"], row["uncaptured"]) for row in rows] == [([], 0)] * 2
    assert "not read" not in said


@pytest.mark.parametrize(
    ("held", "seen"),
    [
        ({HOOK: torch.ones(1, 4, 9), "token_ids": torch.ones(1, 3).long()}, "3 tokens"),
        ({HOOK: torch.ones(2, 4, 9), "token_ids": torch.ones(1, 4).long()}, "1 prompts"),
        ({HOOK: torch.ones(1, 4, 9), "blocks.2.hook_resid_post": torch.ones(2, 4, 9),
          "token_ids": torch.ones(1, 4).long()}, "block.3 (2, 4)"),
        ({HOOK: torch.ones(1, 4, 9), "token_ids": torch.ones(1, 4)}, "token_ids (1, 4) float32"),
        ({"blocks.1.hook_sae_acts_post": torch.ones(1, 4, 9)}, "latents"),
        ({HOOK: torch.ones(4)}, "(B, T, width)"),
        ({HOOK: torch.ones(1, 4, 9, dtype=torch.uint8)}, "uint8"),
        ({"blocks.1.attn.hook_v": torch.ones(1, 1, 4, 2, 3)}, "heads"),
        ({"activations": torch.ones(4), "locations": torch.ones(4, 3)}, "latents of an SAE"),
    ],
)  # fmt: skip
def test_what_is_no_site_is_one_line(tmp_path, held, seen):
    with one_line(RequestError, seen):
        read_capture(write(tmp_path / "a.safetensors", held))


@pytest.mark.parametrize("kind", ["torch", "JSON"])
@pytest.mark.parametrize(
    ("ids", "good"),
    [
        ([4, 5, 6], True),
        ([[4, 5, 6]], True),
        ([], False),
        ([[]], False),
        ([[4, 5], [6]], False),
        ([4, [5, 6]], False),
        ([4.0, 5.0, 6.0], False),
        ("4 5 6", False),
    ],
)
def test_ids_that_stand_as_lists_are_rows_of_whole_numbers(tmp_path, kind, ids, good):
    """Of one row, they were a traceback."""
    held, file = {HOOK: torch.ones(1, 3, 9)}, tmp_path / "a.pt"
    if kind == "torch":
        torch.save(held | {"token_ids": ids}, file)
    else:
        file = write(tmp_path / "a.safetensors", held)
        file.with_suffix(".json").write_text(json.dumps({"token_ids": ids}))
    with contextlib.nullcontext() if good else one_line(RequestError, "token_ids"):
        assert read_capture(file, torch_file=kind == "torch").ids == [[4, 5, 6]]


def test_rows_of_unlike_lengths_are_prompts(engine, ask, tmp_path):
    folder = write_folder(tmp_path / "a", engine, ids=False, ragged=True)
    texts = [row["tokens"] for row in ask(folder)[1]]
    assert texts == [engine.ids[:8].tolist(), engine.ids[:10].tolist()]


def test_mutants_are_read_or_refused(engine, fuzz, tmp_path):
    assert fuzz(write(tmp_path / "a.safetensors", {HOOK: engine.states[2][None]})) > 10
    folder = write_folder(tmp_path / "a", engine)
    for file in sorted(folder.iterdir()):
        fuzz(file, of=folder)
