"""Sessions and slots of llama.cpp: ids in clear, values read, the rest refused."""

import struct

import pytest
import torch

from eval.captured.files.clear import describe
from eval.captured.files.recognise import read_capture

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}


SESSION, SLOT = 0x6767736E, 0x67677371


def write(path, engine, kind=torch.float32, magic=SESSION, version=9, transposed=False, **more):
    """As llama.cpp saves a state: ids, the architecture (of a session), cells, keys, values."""
    ids, T = engine.ids.tolist(), len(engine.ids)
    ids += more.get("later", [])
    held = struct.pack("<III", magic, version, len(ids)) + struct.pack(f"<{len(ids)}i", *ids)
    held += struct.pack("<I", 5) + b"llama" if magic == SESSION else b""
    held += struct.pack("<II", more.get("streams", 1), T)
    for position in more.get("positions", range(T)):
        held += struct.pack("<iIi", position, 1, 0)
    held += struct.pack("<II", int(transposed), len(engine.keys))
    number = more.get("number", TYPES[kind])
    for rows in engine.keys:
        held += bytes_of(rows.flatten(1), kind, number)
    for rows in engine.values:
        held += bytes_of(rows.flatten(1), kind, number, transposed)
    path.write_bytes(held + more.get("tail", b""))
    return path


def bytes_of(rows, kind, number, transposed=False):
    rows = rows.to(kind)
    raw = (rows.T if transposed else rows).contiguous().view(torch.uint8).numpy().tobytes()
    if transposed:
        return struct.pack("<iII", number, kind.itemsize, rows.shape[1]) + raw
    return struct.pack("<iQ", number, rows.shape[1] * kind.itemsize) + raw


@pytest.mark.parametrize(
    ("magic", "version", "name"),
    [(SESSION, 9, "session"), (SESSION, 10, "session"), (SLOT, 2, "slot"), (SLOT, 3, "slot")],
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_ids_and_values_are_read(engine, ask, tmp_path, kind, transposed, magic, version, name):
    """A slot has no name of an architecture, for which its values were not read."""
    file = write(tmp_path / "a.bin", engine, kind, magic, version, transposed)
    code, (row,), said = ask(file)
    assert (code, row["text"]) == (0, engine.text)
    assert f"llama.cpp {name}, version {version}: 20 token ids" in said
    held = read_capture(file).outputs
    for layer, rows in enumerate(engine.values, start=1):
        found = held[f"value.{layer}"].read().outputs
        assert torch.equal(found.float().view(20, -1), rows.flatten(1).to(kind).float())


def test_values_agree_with_the_ids(engine, ask, tmp_path):
    file = write(tmp_path / "a.bin", engine, torch.float16, transposed=True)
    code, (row,), _ = ask(file, "--verify", "--layer", "2")
    assert (code, row["site"], row["text"], row["differs"]) == (0, "value.2", engine.text, [])
    assert row["uncaptured"] == 0
    file = write(tmp_path / "b.bin", engine, later=[5, 6])
    code, (row,), _ = ask(file, "--verify", "--layer", "2")
    assert (code, row["differs"], row["uncaptured"]) == (0, [], 2)
    assert "but for the last 2" in describe(row["differs"], row["uncaptured"])


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({"number": 8}, "q8_0, which may be Hadamard-rotated"),
        ({"number": 2}, "Hadamard"),
        ({"number": 39}, "type 39"),
        ({"streams": 2}, "2 streams"),
        ({"positions": [0] * 20}, "cell 1 has position 0"),
        ({"tail": bytes(8)}, "8 bytes more"),
    ],
)
def test_of_another_cache_the_ids_alone_are_read(engine, ask, tmp_path, more, seen):
    file = write(tmp_path / "a.bin", engine, magic=SLOT, version=2, **more)
    code, (row,), said = ask(file)
    assert (code, row["text"]) == (0, engine.text)
    assert "slot" in said
    code, _, said = ask(file, "--verify")
    assert code == 2
    assert seen in said.splitlines()[-1]


def test_another_version_and_a_cut_file_are_one_line(engine, ask, tmp_path):
    code, _, said = ask(write(tmp_path / "a.bin", engine, version=8))
    assert code == 2
    assert "version 8; known are 9 and 10" in said.splitlines()[-1]
    file = tmp_path / "b.bin"
    file.write_bytes(write(tmp_path / "a.bin", engine).read_bytes()[:40])
    code, _, said = ask(file)
    assert code == 2
    assert "ends before its token ids" in said.splitlines()[-1]


def test_mutants_are_read_or_refused(engine, fuzz, tmp_path):
    fuzz(write(tmp_path / "a.bin", engine))
