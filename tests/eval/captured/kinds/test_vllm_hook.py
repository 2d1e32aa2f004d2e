"""Captures of IBM's vLLM-Hook: padded or concatenated, plain or quantised."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eval import RequestError
from eval.captured.files.recognise import read_capture
from tests.said import one_line

NAME = "model__layers__1"
LENGTHS = [20, 12]


def two_prompts(engine, padded=False):
    """The outputs of block 2 of the text, and of its first 12 tokens."""
    rows = [engine.states[2], engine.states[2][:12]]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if padded else torch.cat(rows)


def write(path, held, lengths=LENGTHS):
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, path)
    path.with_suffix(".json").write_text(json.dumps({"seq_lens": lengths, "batch_size": 32}))
    return path


def quantise(x, tag, gran="group", g=16):
    """Codes, scale and qmeta of `(T, D)`, as the hook quantises."""
    about = {"tag": tag, "gran": gran, "orig_shape": list(x.shape), "orig_dtype": "float32",
             "group_size": g, "bits": 8}  # fmt: skip
    if tag.startswith("fp8"):
        kind = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[tag]
        return x.to(kind).view(torch.uint8), None, about
    top = {"int8": 127, "int4": 7, "int2": 1}[tag]
    if gran == "group":
        scale = torch.stack([part.abs().amax(-1) for part in x.split(g, -1)], -1) / top
        each = scale.repeat_interleave(g, -1)[:, : x.shape[1]]
    else:
        largest = x.abs().amax(-1) if gran == "token" else x.abs().max().reshape(1)
        scale = largest / top
        each = scale[:, None]
    codes = (x / each).round().clamp(-top, top)
    if tag == "int8":
        return codes.to(torch.int8), scale, about
    per = 4 if tag == "int2" else 2
    codes = torch.nn.functional.pad((codes + top).to(torch.uint8), (0, -x.shape[1] % per))
    shifts = torch.arange(0, 8, 8 // per, dtype=torch.uint8)
    packed = (codes.unflatten(-1, (-1, per)) << shifts).sum(-1).to(torch.uint8)
    return packed, scale, about


def write_torch(path, x, tag, gran="group", **more):
    codes, scale, about = quantise(x, tag, gran)
    held = {NAME: codes, f"{NAME}_zp": None, f"{NAME}_qmeta": about, "seq_lens": LENGTHS}
    torch.save(held | ({} if scale is None else {f"{NAME}_scale": scale}) | more, path)
    return path


@pytest.mark.first(1)
@pytest.mark.parametrize("padded", [True, False])
def test_prompts_of_two_lengths_are_told_apart(engine, ask, tmp_path, padded):
    file = write(tmp_path / "hidden_states.safetensors", {NAME: two_prompts(engine, padded)})
    code, rows, said = ask(file)
    assert code == 0
    assert [row["text"] for row in rows] == [engine.text, engine.text[:12]]
    assert {row["site"] for row in rows} == {"block.2"}
    assert "vLLM-Hook" in said


def test_keys_are_read_and_queries_are_not(engine, ask, tmp_path):
    keys = engine.keys[0].flatten(1)
    held = {f"model__layers__0__self_attn__attn__{name}": keys.clone() for name in "qk"}
    code, (row,), _ = ask(write(tmp_path / "qk.safetensors", held, [20]))
    assert (code, row["site"], row["text"]) == (0, "rotated_key.1", engine.text)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("tag", "gran"),
    [("int8", "group"), ("fp8_e4m3", "none")],
)
def test_a_quantised_capture_gives_the_text(engine, ask, tmp_path, tag, gran):
    file = write_torch(tmp_path / "a.pt", two_prompts(engine), tag, gran)
    code, rows, _ = ask(file, "--torch-file", "--truth", engine.text, engine.text[:12])
    assert code == 0
    assert all(row["right"] + row["named"] >= len(row["tokens"]) - 1 for row in rows)
    assert not any(row["false_certain"] for row in rows)


@pytest.mark.parametrize(
    ("tag", "gran"),
    [*((tag, "group") for tag in ("int8", "int4", "int2", "fp8_e4m3", "fp8_e5m2")),
     ("int8", "token"), ("int8", "tensor")],
)  # fmt: skip
@pytest.mark.parametrize("width", [32, 29])
def test_numbers_lie_within_half_a_step(engine, tmp_path, tag, gran, width):
    """Of int2 too, in groups of 16 channels, the last of which is not full."""
    x = two_prompts(engine)[:, :width]
    file = write_torch(tmp_path / "a.pt", x, tag, gran)
    raw = read_capture(file, torch_file=True).outputs["block.2"].read()
    found = raw.outputs.float()
    error = 0.13 * x.abs()
    if isinstance(raw.scale, torch.Tensor):
        found = found * raw.scale
        error = torch.cat([raw.scale[0], raw.scale[1, :12]]) / 2
    found = torch.cat([found[0], found[1, :12]])
    assert bool(((found - x).abs() <= error + 1e-5).all())


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({f"{NAME}_zp": torch.zeros(1)}, "zero point"),
        ({f"{NAME}_scale": torch.full((32,), torch.nan)}, "nan"),
        ({f"{NAME}_scale": torch.zeros(32)}, "a scale of 0"),
        ({f"{NAME}_scale": torch.ones(7)}, "_scale (7,)"),
        ({f"{NAME}_qmeta": {"tag": "int3"}}, "int3"),
        ({f"{NAME}_qmeta": {"tag": "int4", "orig_shape": [32, 32]}}, "takes (32, 16) uint8"),
        ({f"{NAME}_qmeta": None}, "_qmeta"),
        ({"seq_lens": [20, 13]}, "say 33 tokens"),
        ({"seq_lens": [1, True]}, "seq_lens"),
        ({"seq_lens": 32}, "seq_lens"),
        ({"model__layers__x": torch.ones(32, 32)}, "model__layers__x"),
        ({"more": torch.ones(3)}, "captures of vLLM-Hook"),
        ({NAME: torch.ones(32, 32).to_sparse()}, f"{NAME}: a sparse"),
        ({NAME: torch.ones(1, 32).expand(1 << 40, 32)}, "would unpack to"),
        ({"more": np.ones(3)}, "holds a numpy"),
    ],
)
def test_what_is_not_known_is_one_line(engine, tmp_path, more, seen):
    file = write_torch(tmp_path / "a.pt", two_prompts(engine), "int8", "token", **more)
    with one_line(RequestError, seen):
        read_capture(file, torch_file=True)


@pytest.mark.parametrize(
    ("mark", "more", "seen"),
    [
        (b"\xef\xbb\xbf", "", None),
        (b"", ', "seq_lens": [12, 20]', "'seq_lens' stands twice"),
        (b"\xff\xfe", "", "can't decode byte 0xff"),
        (b"", ",", "no JSON in UTF-8"),
    ],
)
def test_lengths_are_read_from_whole_json_alone(engine, tmp_path, capsys, mark, more, seen):
    """Of two, the last was taken, which gave two prompts of other tokens."""
    file = write(tmp_path / "a.safetensors", {NAME: two_prompts(engine)})
    text = f'{{"seq_lens": {LENGTHS}{more}}}'
    file.with_suffix(".json").write_bytes(mark + text.encode())
    if seen is None:
        assert read_capture(file).outputs["block.2"].outputs.shape == (2, 20, 32)
    else:
        with one_line(RequestError, "seq_lens None"):
            read_capture(file)
        assert seen in capsys.readouterr().err


def test_numbers_that_stand_negated_are_read(engine, tmp_path):
    """Torch keeps the imaginary part of a conjugate as a view that negates."""
    x = two_prompts(engine)
    torch.save({NAME: torch.complex(x, -x).conj().imag, "seq_lens": LENGTHS}, tmp_path / "a.pt")
    raw = read_capture(tmp_path / "a.pt", torch_file=True).outputs["block.2"].read()
    assert torch.equal(raw.outputs[0], x[:20])


@pytest.mark.parametrize(
    ("held", "lengths", "seen"),
    [
        (lambda x: {NAME: x[:2]}, LENGTHS, "the last token of each"),
        (lambda x: {NAME: x}, None, "seq_lens None"),
        (lambda x: {NAME: x.to(torch.int8)}, LENGTHS, "integers without"),
        (lambda x: {NAME: torch.ones(2, 20, 32)}, LENGTHS, "pads are zeros"),
        (lambda x: {f"{NAME}__self_attn__attn__q": x}, LENGTHS, "queries alone"),
        (lambda x: {NAME: x, f"drafter__{NAME}": x + 1}, LENGTHS, "block.2 too"),
    ],
)
def test_rows_that_do_not_fit_are_one_line(engine, tmp_path, held, lengths, seen):
    file = write(tmp_path / "a.safetensors", held(two_prompts(engine)), lengths)
    with one_line(RequestError, seen):
        read_capture(file)


def test_mutants_are_read_or_refused(engine, fuzz, tmp_path):
    file = write(tmp_path / "a.safetensors", {NAME: two_prompts(engine)})
    assert fuzz(file) > 10
    file = write_torch(tmp_path / "a.pt", two_prompts(engine), "int4")
    assert fuzz(file, torch_file=True) > 10
