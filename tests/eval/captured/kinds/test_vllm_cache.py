"""vLLM's keys and values, a folder with a file for each layer, in the shapes that it has."""

import pytest
import torch
from safetensors.torch import save_file

from eval.captured.files.recognise import read_capture

LAYOUTS = {
    "(T, heads, 2 * width)": lambda pair: torch.cat(pair, dim=-1),
    "(T, 2, heads, width)": lambda pair: torch.stack(pair, dim=1),
    "(2, T, heads * width)": lambda pair: torch.stack([part.flatten(1) for part in pair]),
}


def write(
    folder, engine, layout="(T, heads, 2 * width)", layers=(0, 1, 2), change=lambda held: held
):
    """As the connector writes a request of 20 tokens: the first block of 16 alone."""
    folder.mkdir()
    for layer in layers:
        held = LAYOUTS[layout]([part[layer][:16] for part in (engine.keys, engine.values)])
        path = folder / f"model.layers.{layer}.self_attn.attn.safetensors"
        save_file({"kv_cache": change(held).contiguous()}, path)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_and_values_of_any_layout_are_read(engine, tmp_path, layout):
    """Those of the Triton backend were refused."""
    capture = read_capture(write(tmp_path / "a", engine, layout))
    assert f"read as {layout}" in capture.kind
    for name, part in (("rotated_key", engine.keys), ("value", engine.values)):
        for layer, rows in enumerate(part, start=1):
            held = capture.outputs[f"{name}.{layer}"].read().outputs
            assert torch.equal(held, rows[:16].flatten(1))


def test_the_working_directory_is_a_folder_as_others(engine, tmp_path, monkeypatch):
    """Its name is empty, which was a traceback."""
    monkeypatch.chdir(write(tmp_path / "a", engine))
    assert read_capture(".").outputs.keys() == read_capture(tmp_path / "a").outputs.keys()


@pytest.mark.first(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_and_values_of_a_folder_give_the_text(engine, ask, tmp_path, layout):
    code, rows, said = ask(write(tmp_path / "one", engine, layout, (1,)))
    assert code == 0
    assert sorted(row["site"] for row in rows) == ["rotated_key.2", "value.2"]
    assert {row["text"] for row in rows} == {engine.text[:16]}
    assert "ExampleConnector" in said
    folder = write(tmp_path / "two", engine, layout, (0, 1))
    code, rows, _ = ask(folder, "--layer", "2", "--part", "value")
    assert [row["site"] for row in rows] == ["value.2"]


@pytest.mark.parametrize(
    ("change", "words", "seen"),
    [
        (lambda x: x.flatten(1), [], "MLA"),
        (lambda x: (8 * x).to(torch.uint8), [], "uint8"),
        (lambda x: x.to(torch.float8_e4m3fn), [], "fp8"),
        (lambda x: x[:5], [], "whole blocks"),
        (lambda x: x[:2], [], "whole blocks"),
        (lambda x: x[..., :-1], [], "whole blocks"),
        (lambda x: x[:0], [], "whole blocks"),
        (lambda x: x[:, None], [], "whole blocks"),
        (lambda x: x[:7, None].expand(-1, 2, -1, -1), [], "whole blocks"),
        (lambda x: x[0, 0], [], "whole blocks"),
        (lambda x: x[..., :-2], ["--tensor", "value.1"], "channels"),
        (lambda x: x, ["--layer", "9"], "rotated_key.1"),
        (lambda x: x, ["--tensor", "block.1"], "rotated_key.1"),
    ],
)
def test_what_cannot_be_read_is_one_line(engine, ask, tmp_path, change, words, seen):
    code, rows, said = ask(write(tmp_path / "hash", engine, change=change), *words)
    assert (code, rows) == (2, None)
    assert said.splitlines()[-1].startswith("error: ")
    assert seen in said.splitlines()[-1]


def test_files_of_two_requests_and_other_folders_are_refused(engine, ask, tmp_path):
    folder = write(tmp_path / "hash", engine, layers=(0, 1))
    other = write(tmp_path / "other", engine, layers=(2,), change=lambda x: x[:8])
    (file,) = other.iterdir()
    for name, seen in (("model.layers.2.safetensors", "one request"), ("layers.0.x", "one file")):
        moved = file.rename(folder / f"{name.removesuffix('.safetensors')}.safetensors")
        code, _, said = ask(folder)
        assert code == 2
        assert seen in said.splitlines()[-1]
        file = moved
    code, _, said = ask(other)
    assert code == 2
    assert "a folder of 0 safetensors files" in said.splitlines()[-1]


def test_mutants_are_read_or_refused(engine, fuzz, tmp_path):
    folder = write(tmp_path / "hash", engine)
    (file, *_) = sorted(folder.iterdir())
    assert fuzz(file, of=folder) > 10
