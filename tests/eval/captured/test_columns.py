"""Folders of datasets: columns of arrays, of ids and of masks, and what is said of any other."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from eval import RequestError
from eval.captured.files.recognise import read_capture
from eval.captured.files.stored import read_stored
from eval.captured.files.tensors import MASK
from tests.said import one_line

X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
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


@pytest.mark.parametrize("name", ["scale", "zeros", "loss", "loss_scale"])
def test_a_score_of_each_row_beside_floats_is_passed_over(tmp_path, name, capsys):
    """The folder was refused for a score named scale, and a line named one with nulls."""
    import datasets

    held = {"states": X[None].repeat(2, 0), name: [1.5, 2.5], "label": [1, None]}
    datasets.Dataset.from_dict(held).save_to_disk(tmp_path)
    capsys.readouterr()
    ((found, outputs),) = read_capture(tmp_path).outputs.items()
    assert (found, outputs.scale, outputs.zero_point) == ("states", None, None)
    assert "not read" not in capsys.readouterr().err


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


def test_rows_that_another_file_chooses_are_refused(tmp_path):
    """As datasets before 1.12 saved a selection: rows that it leaves out were recovered."""
    import datasets

    datasets.Dataset.from_dict({"states": X[None].repeat(2, 0)}).save_to_disk(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps(state))
    with one_line(RequestError, "indices"):
        read_capture(tmp_path)


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
