"""Formats of 8 bits and of float64: what their numbers stand for, and what they give away."""

import contextlib
import itertools
import json
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from eval import RequestError, recover
from eval.__main__ import main
from eval.captured.files.recognise import read_capture
from eval.captured.files.stored import FLOATS, FORMATS, FP8, read_stored, view_bits
from eval.commands.recover import Format
from eval.messages import say_of_model
from tests.said import one_line


@pytest.mark.parametrize("kind", FP8)
def test_a_step_of_8_bits_is_the_distance_to_the_next_number(kind):
    """All 256 numbers of the format, sorted, are the oracle."""
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8[kind])
    numbers = numbers[numbers.float().isfinite() & (numbers.float() >= 0)]
    stored = read_stored(numbers[None])
    assert stored.format == kind
    held = numbers.float().unique()
    above = dict(itertools.pairwise(held.tolist()))
    for number, step in zip(stored.values.flatten().tolist(), stored.step.flatten().tolist(),
                            strict=True):  # fmt: skip
        assert number not in above or step == above[number] - number
    scaled = read_stored(numbers[None], scale=0.25)
    assert torch.equal(scaled.values, stored.values / 4)
    assert torch.equal(scaled.step, stored.step / 4)


@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e5m2"])
def test_numbers_of_8_bits_that_were_widened_are_known(kind):
    numbers = torch.randn(1, 40, 9).to(FP8[kind])
    for wider in (torch.bfloat16, torch.float16, torch.float32):
        stored = read_stored(numbers.to(wider))
        assert stored.format == kind
        assert torch.equal(stored.step, read_stored(numbers).step)


@pytest.mark.parametrize("scale", [None, 2.0])
def test_fp8_without_a_scale_is_said(scale, capsys):
    """It was read in silence, also where its scale had a name that is not known."""
    say_of_model.cache_clear()
    read_stored(torch.ones(1, 5, 8).to(FP8["fp8_e4m3"]), scale=scale)
    assert ("NAME.scale" in capsys.readouterr().err) == (scale is None)


@pytest.mark.parametrize("places", [1, 2, 4])
def test_numbers_that_were_printed_with_a_few_decimals_are_known(places):
    numbers = 3 * torch.randn(1, 40, 9, dtype=torch.float64)
    printed = torch.tensor(numbers.numpy().round(places).tolist())
    stored = read_stored(printed)
    assert stored.format == f"{places} decimals"
    assert bool((stored.step == 10.0**-places).all())
    assert bool(((stored.values - numbers).abs() <= 0.51 * stored.step).all())


@pytest.mark.parametrize("places", [2, 4, 6])
@pytest.mark.parametrize("large", [3000.0, 54321.98765])
def test_decimals_are_known_beside_a_row_of_large_numbers(places, large):
    """Those of a first token hid the decimals of all others, whose steps were then too small."""
    numbers = 3 * torch.randn(1, 40, 9, dtype=torch.float64)
    numbers[0, 0] = large * torch.arange(9)
    printed = torch.tensor(numbers.numpy().round(places).tolist())
    stored = read_stored(printed)
    assert stored.format == f"{places} decimals"
    neighbours = torch.nextafter(printed.abs(), torch.tensor(torch.inf)) - printed.abs()
    assert torch.equal(stored.step, neighbours.clamp(min=10.0**-places))
    off = (printed.double() - numbers).abs()
    assert bool((2 * off <= 10.0**-places + neighbours).all())
    unrounded = 3 * torch.randn(1, 40, 9)
    unrounded[0, 0] = large
    assert read_stored(unrounded).format == "fp32"


@pytest.mark.parametrize("digits", [3, 6])
@pytest.mark.parametrize("size", [1e-6, 1.0, 100.0])
def test_numbers_that_were_printed_with_a_few_digits_are_known(digits, size):
    """Those of three digits were taken for five decimals."""
    drawn = torch.Generator().manual_seed(0)
    numbers = size * torch.randn(360, dtype=torch.float64, generator=drawn)
    numbers[:2] = torch.tensor([0.0, 0.999999 * size])
    printed = torch.tensor([[float(f"{x:.{digits}g}") for x in numbers.tolist()]])
    stored = read_stored(printed)
    assert stored.format == f"{digits} digits"
    assert bool(((stored.values - numbers).abs() <= 0.52 * stored.step).all())
    assert bool((stored.step <= 1.01 * 10.0 ** (1 - digits) * printed.abs().clamp(min=1e-30)).all())


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_other_numbers_have_no_decimals(size):
    assert read_stored(size * torch.randn(1, 40, 9)).format == "fp32"
    whole = read_stored(torch.arange(36_000.0).view(1, 4000, 9)).format
    assert "decimals" not in whole
    assert "digits" not in whole


FP4 = torch.float4_e2m1fn_x2
SHAPES = [
    # outputs, scale or zero point, as which it is laid along the outputs
    ((2, 5, 8), (), (1, 1, 1)),
    ((2, 5, 8), (1,), (1, 1, 1)),
    ((2, 5, 8), (5,), (1, 5, 1)),
    ((2, 5, 8), (8,), (1, 1, 8)),
    ((2, 5, 8), (5, 1), (1, 5, 1)),
    ((2, 5, 8), (1, 8), (1, 1, 8)),
    ((2, 5, 8), (2, 5), (2, 5, 1)),
    ((2, 5, 8), (2, 1, 1), (2, 1, 1)),
    ((5, 8), (1, 5, 1), (5, 1)),
    ((2, 3, 5, 4), (2, 3, 5, 1), (2, 3, 5, 1)),
    ((2, 3, 5, 4), (2, 3, 5), (2, 3, 5, 1)),
    ((2, 3, 5, 4), (3,), (1, 3, 1, 1)),
    ((2, 3, 5, 4), (3, 1, 1), (1, 3, 1, 1)),
    ((2, 3, 5, 4), (3, 1), (1, 3, 1, 1)),
    ((2, 3, 5, 4), (1, 3, 1, 4), (1, 3, 1, 4)),
    ((2, 3, 5, 4), (5, 1), (1, 1, 5, 1)),
]


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
@pytest.mark.parametrize(("shape", "given", "laid"), SHAPES)
def test_a_scale_and_a_zero_point_are_laid_along_the_outputs(kind, shape, given, laid):
    codes = torch.randint(0, 100, shape).to(kind)
    scale, zero = torch.rand(given) + 0.1, torch.randint(-9, 9, given).to(torch.int8)
    stored = read_stored(codes, scale=scale, zero_point=zero)
    units, right = scale.view(laid), (codes.float() - zero.view(laid)) * scale.view(laid)
    units = units.expand(shape)
    if len(shape) == 4:
        right, units = (x.transpose(1, 2).flatten(2) for x in (right, units))
    torch.testing.assert_close(stored.values, right.view(stored.values.shape))
    torch.testing.assert_close(stored.step, units.reshape(stored.step.shape))


def test_groups_of_channels_have_a_step_each():
    codes, scale = torch.randint(-8, 8, (2, 5, 64), dtype=torch.int8), torch.rand(5, 2) + 0.1
    right = scale[None, :, :, None].expand(2, 5, 2, 32).flatten(2)
    stored = read_stored(codes, scale=scale)
    assert torch.equal(stored.step, right)
    assert torch.equal(stored.values, codes * right)


@pytest.mark.parametrize(
    ("kind", "asked", "seen"),
    [
        (torch.float32, {"scale": 2.0}, "scale"),
        (torch.bfloat16, {"zero_point": 2.0}, "zero_point"),
        (torch.float8_e5m2, {"zero_point": 2.0}, "zero_point"),
        (torch.float8_e5m2, {"format": "bf16"}, "bf16"),
        (torch.float8_e4m3fn, {"scale": torch.rand(3)}, "(3,)"),
        (torch.float8_e8m0fnu, {}, "float8_e8m0fnu"),
        (torch.uint8, {"scale": 2.0}, "zero point"),
        (torch.uint8, {}, "scale"),
        (torch.int8, {"scale": torch.rand(3, 8, 1)}, "(3, 8, 1)"),
        (torch.int8, {"scale": torch.rand(8)}, "several ways"),
        (torch.int8, {"scale": torch.rand(8).bool()}, "bool"),
        (torch.int8, {"scale": "one"}, "scale"),
        (torch.int8, {"scale": torch.ones(0)}, "no numbers"),
        (torch.int8, {"scale": torch.ones(8).to_sparse()}, "a sparse"),
        (torch.float8_e4m3fn, {"scale": torch.full((8, 1), 120, dtype=torch.uint8)}, "uint8"),
        (torch.int8, {"scale": torch.zeros(8, dtype=torch.uint8).view(FP4)}, "float4"),
        (torch.int8, {"scale": 1.0, "format": "uint8"}, "int8"),
        (torch.int16, {"scale": 1.0}, "int16"),
        (torch.int32, {}, "int32"),
        (torch.bool, {}, "bool"),
        (torch.complex64, {}, "complex64"),
        (torch.float32, {"format": "int8"}, "int8"),
    ],
)
def test_what_a_format_does_not_have_is_one_line(kind, asked, seen):
    with one_line(RequestError, seen):
        read_stored(torch.ones(2, 8, 8).to(kind), **asked)


@pytest.mark.parametrize(
    ("change", "format", "good"),
    [
        (lambda x: x.bfloat16(), "fp32", False),
        (lambda x: x.bfloat16(), "fp16", False),
        (lambda x: x.bfloat16().float(), "fp16", False),
        (lambda x: x.to(FP8["fp8_e4m3"]).bfloat16(), "bf16", True),
        (lambda x: x.to(FP8["fp8_e4m3"]).float(), "bf16", False),
        (lambda x: x, "fp8_e4m3", False),
        (lambda x: x, "bf16", False),
        (lambda x: 0.3 * x.to(FP8["fp8_e4m3"]).float(), "fp8_e4m3", False),
        (lambda x: x, "fp32", True),
        (lambda x: x.double(), "fp32", True),
        (lambda x: x.bfloat16().float(), "fp32", True),
        (lambda x: x.bfloat16().float(), "bf16", True),
        (lambda x: x.to(FP8["fp8_e5m2"]).float(), "fp8_e5m2", True),
        (lambda x: x.to(FP8["fp8_e4m3fnuz"]).float(), "fp8_e4m3fnuz", True),
        (lambda x: (500 * x).to(FP8["fp8_e5m2fnuz"]).float(), "fp8_e5m2fnuz", True),
        (lambda x: torch.cat([x[:1].bfloat16().float(), x]), "bf16", True),  # rows not shown
    ],
)
def test_floats_are_of_the_format_that_is_said(change, format, good):
    """It was believed: tokens missed by steps too small, or a tolerance was said that was none."""
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    with contextlib.nullcontext() if good else one_line(RequestError, f"format {format}: "):
        assert read_stored(change(x), format).format == format


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -1.0, 0.0])
def test_a_scale_that_is_none_matters_where_it_is_shown(wrong):
    codes, scale = torch.ones(1, 4, 8, dtype=torch.int8), torch.ones(4, 1)
    scale[2] = wrong
    stored = read_stored(codes, scale=scale)
    assert stored.values.isfinite().all(dim=-1)[0].tolist() == [True, True, False, True]
    assert bool(stored.step.isfinite().all())
    codes[0, 2], scale[2] = 0, 0.0
    stored = read_stored(codes, scale=scale)
    assert not stored.values[0, 2].any()
    assert not stored.step[0, 2].any()


@pytest.mark.parametrize("shift", [0.0, 1e-10])
def test_float64_goes_on_in_float32(shift):
    numbers = torch.randn(2, 5, 8).double() + shift
    stored = read_stored(numbers)
    assert stored.format == "fp32"
    assert stored.values.dtype == torch.float32
    assert bool(((numbers - stored.values).abs() <= stored.step.double() / 2).all())


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("kind", "bits", "format"),
    [
        (torch.bfloat16, torch.uint16, "bf16"),
        (torch.bfloat16, torch.int16, "bf16"),
        (torch.float16, torch.uint16, "fp16"),
        (torch.float8_e4m3fn, torch.uint8, "fp8_e4m3"),
        (torch.float8_e4m3fn, torch.int8, "fp8_e4m3"),
        (torch.float8_e5m2, torch.uint8, "fp8_e5m2"),
    ],
)
@pytest.mark.parametrize("ending", ["safetensors", "npy"])
def test_bits_that_are_kept_as_integers_are_read_where_the_format_is_said(
    kind, bits, format, ending, directories, opened_once, tmp_path, capsys
):
    """Numpy keeps bfloat16 and types of 8 bits as bytes without a type; a mask is used as ever."""
    path = directories["llama"]
    states = load_file(f"{path}/states.safetensors")
    held, file = states["2"].to(kind).view(bits), tmp_path / f"block.2.{ending}"
    if ending == "npy":
        np.save(file, held.numpy().view(f"V{kind.itemsize}"))
        told = ["--layer", "2"]
    else:
        mask = torch.ones(states["tokens"].shape, dtype=torch.long)
        save_file({"block.2": held, "attention_mask": mask}, file)
        told = []
    words = ["recover", str(file), "--model", f"hf:{path}", "--corpus", "toy:400", *told]
    assert main([*words, "--stored", format, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["format"] for row in rows} == {format}
    for row, tokens in zip(rows, states["tokens"].tolist(), strict=True):
        sure = [t for t, proof in enumerate(row["certificates"]) if proof]
        assert len(sure) > 6
        assert all(row["tokens"][t] == tokens[t] for t in sure)
    assert main(words) == 2
    assert "--stored" in capsys.readouterr().err


@pytest.mark.parametrize("bits", [np.int16, np.uint16, ">i2"])
def test_bits_of_one_prompt_in_an_array_are_read_where_the_format_is_said(bits, tmp_path):
    """Of two axes they were taken for ids."""
    held = torch.randn(5, 8).bfloat16()
    np.save(tmp_path / "a.npy", held.view(torch.int16).numpy().view(np.int16).astype(bits))
    (found,) = read_capture(tmp_path / "a.npy", stored="bf16").outputs.values()
    assert torch.equal(view_bits(found.read().outputs, "bf16"), held)
    with one_line(RequestError, "--stored"):
        read_capture(tmp_path / "a.npy")


@pytest.fixture
def captured(directories, opened) -> tuple[Any, dict[str, torch.Tensor]]:
    path = directories["llama"]
    return opened["llama"], load_file(f"{path}/states.safetensors")


def stored_as(kind: str, x: torch.Tensor) -> dict[str, Any]:
    """The arguments of `recover` for states in a format."""
    if kind in FLOATS:
        return {"outputs": x.to(FLOATS[kind])}
    if kind.startswith("int8"):
        scale = (x.abs().amax((0, 1)) if "channel" in kind else x.abs().amax(-1, True)) / 127
        return {"outputs": (x / scale).round().to(torch.int8), "scale": scale}
    if kind == "fp64":
        return {"outputs": x.double()}
    if kind == "2 decimals":
        return {"outputs": torch.tensor(x.double().numpy().round(2).tolist())}
    if kind == "6 digits":
        printed = [float(f"{number:.6g}") for number in x.flatten().tolist()]
        return {"outputs": torch.tensor(printed).view_as(x)}
    if kind == "fp8":
        return {"outputs": x.to(torch.float8_e4m3fn)}
    if kind == "fp8 by token":
        scale = x.abs().amax(dim=-1, keepdim=True) / 448
        return {"outputs": (x / scale).to(torch.float8_e4m3fn), "scale": scale}
    if kind == "uint8":
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
        scale = (high - low) / 255
        zero = (-low / scale).round()
        codes = (x / scale + zero).round().clamp(0, 255).to(torch.uint8)
        return {"outputs": codes, "scale": scale, "zero_point": zero.to(torch.uint8)}
    groups = x.unflatten(-1, (-1, 8))
    scale = groups.abs().amax(dim=-1) / 7
    return {"outputs": (groups / scale[..., None]).round().flatten(-2).to(torch.int8),
            "scale": scale}  # fmt: skip


KINDS = ["bf16", "fp16", "int8 by channel", "int8 by token", "fp64", "2 decimals", "6 digits",
         "fp8", "fp8 by token", "uint8", "int4 by group"]  # fmt: skip


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS)
def test_states_in_a_format_are_recovered(captured, kind):
    model, states = captured
    found = recover(model, **stored_as(kind, states["2"]), layer=2, corpus="toy:400")
    for row, tokens in enumerate(states["tokens"].tolist()):
        for t, token in enumerate(tokens):
            answer = int(found.tokens[row, t])
            assert answer == token or token in found.alike[row].get(t, [])
            assert answer == token or not found.certificates[row][t]
    assert found.computed == "fp32"
    assert bool((found.residual <= 3 * found.floor).all()) or kind == "fp64"
    sure = sum(proof is not None for prompt in found.certificates for proof in prompt)
    assert sure == 24 if kind == "fp64" else sure > 12


def test_float64_is_searched_by_every_way(captured):
    model, states = captured
    outputs = states["1"].double()[:1, :8]
    shown = [0, 1, 2, 4, 5, 6, 7]
    ways: list[dict[str, Any]] = [{"solver": "sweep"}, {"shown": shown}, {"format": "fp32"}, {}]
    for asked in ways:
        layer = None if not asked else 1
        found = recover(model, outputs, layer=layer, corpus="toy:400", **asked)
        assert found.tokens.tolist() == states["tokens"][:1, :8].tolist()


def test_a_row_without_a_scale_is_left_out(captured):
    model, states = captured
    x = states["2"][:1]
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    codes = (x / scale).round().to(torch.int8)
    scale[:, -1] = 0.0
    with one_line(RequestError, "positions 11"):
        recover(model, codes, scale=scale, layer=2, corpus="toy:400")
    shown = list(range(11))
    found = recover(model, codes, scale=scale, layer=2, shown=shown, corpus="toy:400")
    assert found.tokens.tolist() == states["tokens"][:1, :11].tolist()


@pytest.mark.parametrize("printed", [True, False])
def test_a_scale_is_named_where_a_number_lacks_one(captured, printed):
    """Of printed numbers it was named too."""
    model, states = captured
    given = stored_as("2 decimals" if printed else "fp8 by token", states["2"])
    given["outputs" if printed else "scale"][:, 3] = torch.nan
    with pytest.raises(RequestError) as caught:
        recover(model, **given, layer=2, corpus="toy:400")
    assert "not finite at positions 3" in str(caught.value)
    assert ("scale" in str(caught.value)) != printed


def test_the_flag_has_all_formats():
    assert {*get_args(Format)} == {*FORMATS}
