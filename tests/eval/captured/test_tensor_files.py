"""Files of captured tensors: each is read as what it holds, or refused in one line."""

import contextlib
import io
import os
import pickle
import random
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from eval import RequestError
from eval.captured.files.recognise import read_capture
from eval.captured.files.stored import read_stored
from eval.captured.files.tensors import name_site, read_tensors
from tests.said import one_line

X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)


def read(path: Path) -> dict[str, Any]:
    return {name: entry.read() for name, entry in read_tensors(path).items()}


@pytest.mark.parametrize(
    "array",
    [X, X[None], X.astype(">f4"), X.astype(">f8"), X.astype(np.float16), np.asfortranarray(X),
     X.astype(">f2"), np.asfortranarray(X.astype(">f4")), X.astype(np.int8), X.view(np.uint8)],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["npy", "npz", "named otherwise"])
def test_an_array_of_any_order_is_read(tmp_path, array, ending):
    path = tmp_path / f"states.{ending}"
    with path.open("wb") as file:
        if ending == "npz":
            np.savez_compressed(file, states=array)
        else:
            np.save(file, array)
    ((name, held),) = read(path).items()
    assert name == "states"
    assert held.outputs.tolist() == array.tolist()
    assert held.outputs.dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype


S = torch.from_numpy(X)


def test_outputs_stay_what_was_read_when_their_file_is_written_in_place(tmp_path):
    """They were a view of the file: a search ended with another prompt's outputs."""
    path = tmp_path / "a.safetensors"
    save_file({"block.1": S.clone()}, path)
    held = read(path)["block.1"].outputs
    with path.open("r+b") as file:
        file.write(save({"block.1": S + 1}))
    assert torch.equal(held, S)


def test_arrays_of_an_archive_are_read_by_name(tmp_path, capsys):
    codes = X.astype(np.int8)
    arrays = {"block.1": X, "block.2": codes, "block.2.scale": X[:, :1]}
    words = {"token_ids": np.arange(5), "text": np.array("a text")}
    np.savez(tmp_path / "a.npz", **arrays, **words)
    held = read(tmp_path / "a.npz")
    assert list(held) == ["block.1", "block.2"]
    assert held["block.2"].scale.tolist() == X[:, :1].tolist()
    said = capsys.readouterr().err
    assert "text () str" in said
    assert "token_ids" in said.splitlines()[-1]
    assert list(read_tensors(tmp_path / "a.npz", ["block.2"])) == ["block.2"]
    with one_line(RequestError, "--tensor token_ids"):
        read_tensors(tmp_path / "a.npz", ["token_ids"])


class Dangerous:
    """A pickle that would leave a trace if it were loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def bytes_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def archive_of(*more: tuple[str, bytes], **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that stands there
        for name, held in [*members.items(), *more]:
            archive.writestr(name, held)
    return file.getvalue()


def twice_named() -> bytes:
    """A file of safetensors with two tensors of one name, at the same place."""
    size, header = X.nbytes, '"a":{"dtype":"F32","shape":%s,"data_offsets":[0,%d]}'
    text = f"{{{header % ([5, 8], size)},{header % ([8, 5], size)}}}".encode()
    return struct.pack("<Q", len(text)) + text + X.tobytes()


HEADER = bytes_of(X)
DAMAGED = {
    "void.npy": (bytes_of(X.view("V2")), "bfloat16"),
    "wider.npy": (bytes_of(X.view("V4")), "4-byte numbers"),
    "e5m2.npy": (HEADER.replace(b"<f4", b"<f1"), "give --stored fp8_e5m2"),
    "complex.npy": (bytes_of(X.astype(np.complex64)), "complex64"),
    "words.npy": (bytes_of(np.array([["a", "b"]])), "(1, 2) str"),
    "fields.npy": (bytes_of(np.zeros((2, 2), "f4,i4")), "fields.npy"),
    "one axis.npy": (bytes_of(X[0]), "(8,) float32"),
    "no axis.npy": (bytes_of(X[0, 0]), "() float32"),
    "cut.npy": (HEADER[:-3], "cut.npy"),
    "cut in the header.npy": (HEADER[:40], "cut in the header"),
    "longer.npy": (HEADER + b"more", "longer.npy"),
    "huge.npy": (HEADER.replace(b"(5, 8)", b"(5, 8" + b"0" * 9 + b")"), "huge.npy"),
    "negative.npy": (HEADER.replace(b"(5, 8)", b"(-5,-8)"), "negative.npy"),
    "token.npy": (HEADER.replace(b"(5, 8)", b"((((((")[:200], "token.npy"),
    "decimal.npy": (HEADER.replace(b"(5, 8)", b"(0o9,1)"), "decimal.npy"),
    "version.npy": (HEADER.replace(b"NUMPY\x01", b"NUMPY\x09"), "version"),
    "none.npz": (archive_of(), "holds nothing"),
    "other.npz": (archive_of(**{"a.txt": b"text"}), "a.txt"),
    "bomb.npz": (archive_of(**{"a.npy": bytes_of(np.zeros((999, 30_000), "i1"))}), "numpy.savez"),
    "lies.npz": (archive_of(**{"a.npy": HEADER.replace(b"(5, 8)", b"(9, 8)")}), "a.npy"),
    "twice.npz": (archive_of(("a.npy", HEADER), **{"a.npy": HEADER}), "twice"),
    "two archives.npz": (archive_of(**{"a.npy": HEADER}) * 2, "another archive"),
    "sparse.npz": (archive_of(**dict.fromkeys(["data.npy", "format.npy", "shape.npy"], HEADER)),
                   "toarray"),
    "twice.safetensors": (twice_named(), "'a' stands twice"),
    "cut.npz": (archive_of(**{"a.npy": HEADER})[:-30], "cut.npz"),
    "gone.npy": (None, "no such file"),
    "text.npy": (b"hello there, this is text", "numpy.save"),
    "empty.npz": (b"", "empty"),
    "cut.safetensors": (save({"a": torch.ones(3, 4)})[:-3], "cut.safetensors"),
    "header.safetensors": (b"\xff" * 7 + b"\x00{", "header.safetensors"),
    "nothing.safetensors": (save({}), "holds nothing"),
    "gguf.safetensors": (b"GGUF" + bytes(100), "(GGUF)"),
    "data.arrow": (b"\xff" * 4 + b"\xf8\x01" + bytes(100), "whose folder is read"),
    "h5.safetensors": (b"\x89HDF\r\n" + bytes(100), "(HDF5); save its numbers as one"),
    "states.npy.gz": (b"\x1f\x8b\x08" + bytes(100), "(gzip); decompress it first"),
    "states.zst": (b"\x28\xb5\x2f\xfd" + bytes(100), "(zstd); decompress it first"),
    "pointer.safetensors": (b"version https://git-lfs.github.com/spec/v1\n", "of Git LFS"),
    "object.json": (b' {"hidden_states": [[1.0, 2.0]]}', "(JSON)"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.filterwarnings("error")
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name):
    held, seen = DAMAGED[name]
    if held is not None:
        (tmp_path / name).write_bytes(held)
    with one_line(RequestError, seen):
        [read_stored(raw.outputs) for raw in read(tmp_path / name).values()]


@pytest.mark.parametrize("kind", ["pt", "pkl", "npy", "npz", "safetensors"])
def test_a_pickle_is_never_loaded(tmp_path, kind):
    path, trace = tmp_path / f"a.{kind}", tmp_path / "trace"
    objects = np.array([[Dangerous(trace)]])
    if kind == "pt":
        torch.save({"block.1": torch.ones(2, 3), "more": Dangerous(trace)}, path)
    elif kind in ("npy", "npz"):
        path.write_bytes(bytes_of(objects) if kind == "npy" else b"")
        if kind == "npz":
            np.savez(path, objects=objects)
    else:
        path.write_bytes(pickle.dumps(Dangerous(trace)))
    with pytest.raises(RequestError) as caught:
        read(path)
    line = str(caught.value)
    assert "\n" not in line
    assert ("numpy.savez" if kind in ("npy", "npz") else "pickle") in line
    assert ("--torch-file" in line) == (kind == "pt")  # which reads no other pickle
    if kind in ("pt", "pkl", "safetensors"):
        with one_line(RequestError, "holds a" if kind == "pt" else "no file of torch.save"):
            read_capture(path, torch_file=True)
    assert not trace.exists()


def test_mutants_of_files_end_in_an_answer_or_in_one_line(tmp_path):
    chance = random.Random(0)
    tensors = {
        "a": torch.randn(5, 8),
        "b": torch.ones(5, 8, dtype=torch.int8),
        "b.scale": torch.ones(5),
    }
    seeds = [HEADER, archive_of(**{"a.npy": HEADER, "b.npy": HEADER}), save(tensors)]
    for number in range(200):
        mutant = bytearray(seeds[number % 3])
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(min(len(mutant), 200) if chance.random() < 0.8 else len(mutant))
            mutant[at] = chance.choice([0, 255, 40, 123, chance.randrange(256)])
        del mutant[chance.choice([len(mutant), len(mutant), chance.randrange(len(mutant))]) :]
        (tmp_path / "mutant").write_bytes(mutant)
        with contextlib.suppress(RequestError):
            read(tmp_path / "mutant")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with one_line(RequestError, "no such file"):
        read_capture(tmp_path / "pipe")


INTEGERS = torch.ones(5, 8, dtype=torch.int8)


def test_tensors_are_read_by_name(tmp_path):
    x, scale = torch.randint(-9, 9, (2, 5, 8), dtype=torch.int8), torch.rand(8)
    save_file({"a": x, "a.scale": scale, "b": x.float()}, tmp_path / "two.safetensors")
    held = read(tmp_path / "two.safetensors")
    assert list(held) == ["a", "b"]
    torch.testing.assert_close(held["a"][:2], (x, scale))
    assert held["b"].scale is None


@pytest.mark.parametrize("scale", ["{}.scale", "{}_scale", "{}.scales", "scale"])
@pytest.mark.parametrize("zero", ["{}.zero_point", "{}_zp", "{}.zeros", "zero_point", None])
def test_a_companion_is_known_by_its_name(tmp_path, scale, zero):
    held = {"block.1": INTEGERS, scale.format("block.1"): torch.ones(5, 1)}
    if zero:
        held[zero.format("block.1")] = torch.zeros(5, 1)
    save_file(held, tmp_path / "a.safetensors")
    ((name, raw),) = read(tmp_path / "a.safetensors").items()
    assert name == "block.1"
    assert raw.scale is not None
    assert (raw.zero_point is not None) == (zero is not None)


@pytest.mark.parametrize(
    ("held", "seen"),
    [
        ({"a": INTEGERS.half(), "a.scale": torch.ones(1)}, "a.scale"),
        ({"a": INTEGERS.float(), "a_zero_point": torch.ones(1)}, "a_zero_point"),
        ({"a": INTEGERS.float(), "scale": torch.ones(1)}, "scale"),
        ({"a": INTEGERS, "a.scale": torch.ones(1), "a_scale": torch.ones(1)}, "a_scale"),
        ({"a": INTEGERS, "a.scale_inv": torch.ones(8)}, "a.scale_inv"),
        ({"a": INTEGERS, "a.scale": torch.ones(1), "a.shift": torch.ones(1)}, "a.shift"),
        ({"a": INTEGERS, "a.scale": torch.ones(1), "a.offset": torch.ones(1, 8)}, "a.offset"),
        ({"a": INTEGERS, "a.scale": torch.ones(1), "a_shift": torch.ones(1, 1, 8)}, "a_shift"),
        ({"a.scale": torch.ones(5, 8)}, "a.scale"),
        ({"ids": torch.ones(5, 8, dtype=torch.long)}, "int64"),
    ],
)
def test_a_companion_that_is_not_known_is_named(tmp_path, held, seen):
    save_file(held, tmp_path / "a.safetensors")
    with one_line(RequestError, seen):
        read_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("scale", ["s", "a.scale_inv", "a.absmax", "a_scale"])
def test_a_tensor_that_is_said_to_be_the_scale_is_that_of_numbers_of_8_bits(tmp_path, scale):
    """Other tensors were left out, and names of the tensor's own were not known."""
    units = torch.rand(5, 1)
    save_file({"a": INTEGERS, "b": S.clone(), scale: units}, tmp_path / "a.safetensors")
    outputs = read_capture(tmp_path / "a.safetensors", None, scale).outputs
    held: dict[str, Any] = {name: entry.read() for name, entry in outputs.items()}
    assert held.keys() == {"a", "b"}
    assert torch.equal(held["a"].scale, units)
    assert held["b"].scale is None


@pytest.mark.parametrize("own", ["a.scale", "a_scales", "scale"])
def test_a_tensor_that_is_said_to_be_the_scale_overrules_none_in_silence(tmp_path, own):
    path, one = tmp_path / "a.safetensors", torch.ones(5, 1)
    save_file({"a": INTEGERS, own: one, "other": 2 * one}, path)
    with one_line(RequestError, f"--scale other: {path} holds {own} for a"):
        read_tensors(path, scale="other")
    held: Any = read_tensors(path, scale=own)["a"].read()
    assert torch.equal(held.scale, one)


@pytest.mark.parametrize(
    ("name", "is_other"),
    [
        ("unmasked_states", False),
        ("masked.block.3", False),
        ("causal_mask", True),
        ("attention_mask.full_attention", True),
        ("Masks_0", True),
        ("pooler_output", True),
        ("sentence_embedding", True),
        ("spool3", False),
        ("pool-block2", False),
    ],
)
def test_masks_and_pooled_states_are_no_outputs(tmp_path, name, is_other, capsys):
    """By a part of the name, outputs of others were passed over; pooled rows were a prompt."""
    save_file({name: S.clone(), "block.1": S.clone()}, tmp_path / "a.safetensors")
    assert (name not in read_tensors(tmp_path / "a.safetensors")) == is_other
    assert (f"not read: {name}" in capsys.readouterr().err) == is_other


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("block.3", (3, "block")),
        ("rotated_key.4", (4, "rotated_key")),
        ("key_cache.0", (1, "rotated_key")),
        ("value_cache.2", (3, "value")),
        ("layers.3.keys", (4, "rotated_key")),
        ("cache.layers.3.values", (4, "value")),
        ("past_key_values.11.key", (12, "rotated_key")),
        ("past_key_values_11_value", (12, "value")),
        ("present.3.key", (4, "rotated_key")),
        ("present.0.value", (1, "value")),
        ("model.layers.3.self_attn.k_proj", None),
        ("states", None),
        ("block.x", None),
    ],
)
def test_a_name_says_the_site(name, site):
    assert name_site(name) == site
