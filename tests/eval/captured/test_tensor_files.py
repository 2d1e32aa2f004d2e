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
from eval.captured.files.tensors import MASK, name_site, read_tensors
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


def test_columns_of_a_folder_of_datasets_are_tensors(tmp_path, capsys):
    import datasets

    held = {"states": X[None].repeat(2, 0), "input_ids": np.ones((2, 5), int),
            "attention_mask": np.ones((2, 5), bool), "text": ["a", "b"],
            "words": [["a"], ["b", "c"]], "tags": [[], []], "boxes": [[[1]], [[1], [2]]],
            "hashes": np.full((2, 3), 1 << 63, np.uint64)}  # fmt: skip
    large = datasets.LargeList(datasets.LargeList(datasets.Value("float32")))  # as polars writes
    table = datasets.Dataset.from_dict(held)
    table.add_column("more", held["states"].tolist(), feature=large).save_to_disk(tmp_path)
    capsys.readouterr()
    more, outputs = (read_capture(tmp_path).outputs[name] for name in ("more", "states"))
    assert torch.equal(more.read().outputs, outputs.read().outputs)
    assert outputs.read().outputs.tolist() == held["states"].tolist()
    assert outputs.mask is not None
    assert outputs.mask.shape == (2, 5)
    assert "input_ids: by name the tokens themselves, in clear" in capsys.readouterr().err


def test_bits_in_a_column_are_read_where_the_format_is_said(tmp_path, capsys):
    """They vanished without a line; whole numbers of unlike lengths are named, as ids are."""
    import datasets

    bits = S.bfloat16().view(torch.int16)
    images = datasets.List(datasets.List(datasets.Value("uint8")))
    features = datasets.Features({"states": datasets.Array2D((5, 8), "int16"), "images": images})
    held = {"states": [bits.tolist()] * 2, "images": [[[1]], [[1], [2]]]}
    datasets.Dataset.from_dict(held, features).save_to_disk(tmp_path)
    ((name, found),) = read_capture(tmp_path, stored="bf16").outputs.items()
    assert name == "states"
    assert torch.equal(found.read().outputs, torch.stack([bits, bits]))
    assert "not read: images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "listed"), [("int64", False), ("float64", False), ("float32", True)]
)
def test_a_scale_of_one_number_a_row_is_that_of_its_row(tmp_path, number, listed):
    """It vanished, or was a number for each token where there are as many rows."""
    import datasets

    codes, kind = torch.randint(-9, 9, (5, 5, 8)), datasets.Value(number)
    told: dict[str, Any] = {"states_scale": [1, 2, 3, 5, 8], "states_zero_point": [1, 2, 3, 4, 5]}
    if listed:
        kind, told = datasets.List(kind), {name: [[x] for x in told[name]] for name in told}
    shapes = {"states": datasets.Array2D((5, 8), "int8"), "label": datasets.Value("int32")}
    features = datasets.Features(shapes | dict.fromkeys(told, kind))
    held = {"states": codes.tolist(), "label": [0] * 5} | told
    datasets.Dataset.from_dict(held, features).save_to_disk(tmp_path)
    ((name, outputs),) = read_capture(tmp_path).outputs.items()
    raw = outputs.read()
    scale, zero = (torch.tensor(x).view(5, 1, 1) for x in told.values())
    assert name == "states"
    values = read_stored(raw.outputs, scale=raw.scale, zero_point=raw.zero_point).values
    assert torch.equal(values, (codes - zero) * scale.float())


NULLS = X[None].repeat(2, 0).tolist()
NULLS[1][4] = [None] * 8


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("states", NULLS, "states, has 8 nulls"),
        ("states", [NULLS[0], None], "states, rows of [5, None]"),
        ("attention_mask", [[1] * 5, [1, 1, 1, None, None]], "attention_mask has nulls"),
        ("attention_mask", [[1] * 5, None], "attention_mask has nulls"),
        ("token_ids", np.full((2, 3), 1 << 63, np.uint64), "token_ids, numbers beyond int64"),
    ],
)
def test_a_column_that_cannot_be_read_does_not_vanish(tmp_path, name, rows, said, alone, capsys):
    """Rows of padding were searched without their mask; alone, the folder was said to be empty."""
    import datasets

    table = datasets.Dataset.from_dict({name: rows})
    if not alone:
        table = table.add_column("other", X[None].repeat(2, 0).tolist())
    table.save_to_disk(tmp_path)
    if alone or name == "attention_mask":
        with one_line(RequestError, said):
            read_capture(tmp_path)
    else:
        assert list(read_capture(tmp_path).outputs) == ["other"]
        assert f"not read: {said}" in capsys.readouterr().err


def test_a_folder_of_data_sets_is_refused_by_the_name_of_one(tmp_path):
    import datasets

    split = datasets.Dataset.from_dict({"states": X[None].repeat(2, 0)})
    datasets.DatasetDict({"train": split}).save_to_disk(tmp_path)
    with one_line(RequestError, f"give one of them: {tmp_path / 'train'}"):
        read_capture(tmp_path)
    assert list(read_capture(tmp_path / "train").outputs) == ["states"]


@pytest.mark.parametrize("number", [int, float])
def test_a_column_of_unlike_lengths_is_named(tmp_path, number, capsys):
    """As of ids before they are padded, or of a loss for each token: nothing needs them."""
    import datasets

    rows = [[number(1)], [number(1), number(2)]]
    held = {"states": X[None].repeat(2, 0), "other": rows}
    datasets.Dataset.from_dict(held).save_to_disk(tmp_path / "a")
    assert list(read_capture(tmp_path / "a").outputs) == ["states"]
    assert "not read: other" in capsys.readouterr().err
    datasets.Dataset.from_dict({"other": rows}).save_to_disk(tmp_path / "b")
    with one_line(RequestError, "other, rows of [1, 2]"):
        read_capture(tmp_path / "b")


@pytest.mark.parametrize(
    "masks", [None, [[0, 1, 1, 1, 1], [0, 1, 1]], [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]]
)
def test_arrays_of_unlike_lengths_are_prompts_with_a_mask(tmp_path, masks):
    """The folder was refused, with all its other columns."""
    import datasets

    rows = {
        "a": datasets.Array2D((None, 8), "float16"),
        MASK: datasets.List(datasets.Value("int8")),
    }
    held = {"a": [X[:5].astype("f2"), X[:3].astype("f2")]} | ({MASK: masks} if masks else {})
    features = datasets.Features({name: rows[name] for name in held})
    datasets.Dataset.from_dict(held, features).save_to_disk(tmp_path)
    (outputs,) = read_capture(tmp_path).outputs.values()
    read = outputs.read()
    assert read.mask is not None
    first = 0 if masks and masks[0][0] == 0 else 1
    assert read.mask.tolist() == [[first, 1, 1, 1, 1], [first, 1, 1, 0, 0]]
    assert torch.equal(read.outputs[1, :3], S[:3].half())
    assert not read.outputs[1, 3:].any()


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
    if kind in ("pkl", "safetensors"):
        with one_line(RequestError, "no file of torch.save"):
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
