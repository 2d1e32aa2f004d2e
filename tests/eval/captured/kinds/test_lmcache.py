"""Chunks of LMCache: a header of seven integers, then keys and values of all layers."""

import struct

import pytest
import torch

from eval import RequestError
from eval.captured.files.recognise import read_capture
from tests.said import one_line

NUMBERS = {torch.float16: 1, torch.bfloat16: 3, torch.float32: 4}


def write(path, engine, kind=torch.float32, **changes):
    """As the file system backend writes a chunk; `changes` of the header."""
    pairs = [torch.stack([rows.flatten(1) for rows in part]) for part in engine[4:]]
    held = torch.stack(pairs).to(kind).contiguous()
    raw = held.view(torch.uint8).numpy().tobytes()
    about = {"length": len(raw), "form": 1, "number": NUMBERS[kind], "sizes": held.shape} | changes
    *header, sizes = about.values()
    path.write_bytes(struct.pack("<7i", *header, *sizes) + raw)
    return path


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_chunk_holds_keys_and_values_of_every_layer(engine, tmp_path, kind):
    held = read_capture(write(tmp_path / "a.data", engine, kind)).outputs
    for name, part in (("rotated_key", engine.keys), ("value", engine.values)):
        for layer, rows in enumerate(part, start=1):
            found = held[f"{name}.{layer}"].read().outputs
            assert torch.equal(found.float().view(20, -1), rows.flatten(1).to(kind).float())


def test_a_chunk_gives_the_text(engine, ask, tmp_path):
    file = write(tmp_path / "a.data", engine, torch.bfloat16)
    code, (row,), said = ask(file, "--tensor", "value.3")
    assert (code, row["site"], row["text"]) == (0, "value.3", engine.text)
    assert "LMCache chunk: 20 tokens, 3 layers" in said


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"form": 2}, "of a layer that it does not say"),
        ({"form": 5}, "compressed"),
        ({"form": 6}, "MLA"),
        ({"number": 7}, "without a scale"),
        ({"sizes": (2, 3, 20, 17)}, "are not"),
        ({"sizes": (2, -3, -20, 16)}, "are not"),
        ({"length": 5}, "a.data"),
        ({"form": 9}, "a.data"),
    ],
)
def test_another_chunk_is_one_line(engine, tmp_path, changes, seen):
    with one_line(RequestError, seen):
        read_capture(write(tmp_path / "a.data", engine, **changes))


def test_mutants_are_read_or_refused(engine, fuzz, tmp_path):
    assert fuzz(write(tmp_path / "a.data", engine)) > 10
