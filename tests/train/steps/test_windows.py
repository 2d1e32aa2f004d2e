"""Which tokens make a batch, in both layouts."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.train.cases import pack_toy
from tokenizer import PAD, CorpusError, load_tokenizer, pack, token_bytes
from tokenizer.pack import Layout
from train.settings import BatchSettings, RunError
from train.steps.data import IGNORE, PackedDataModule, Windows, train_batches

CONTEXT = 24


@pytest.fixture(scope="module")
def packed(stories):
    return stories


@pytest.fixture(scope="module", params=["left", "right"])
def rows(request, small_tokenizer, tmp_path_factory):
    layout = Layout("rows", 400, request.param)
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "rows", 40, layout)


def test_an_epoch_holds_every_window_once_with_the_tokens_after_it(packed):
    windows = Windows(packed, "train", CONTEXT, seed=3)
    inputs, targets = windows.batch(0, windows.count)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    line = packed.tokens("train").astype(np.int64)
    at = [o for o in range(CONTEXT) if sorted(_cut(line, o, windows)) == sorted(inputs.tolist())]
    starts = {tuple(row): i for i, row in enumerate(_cut(line, at[0], windows))}
    found = [line[at[0] + (starts[tuple(row)] + 1) * CONTEXT] for row in inputs.tolist()]
    same = np.mean(
        [token == after for token, after in zip(found, targets[:, -1].tolist(), strict=True)]
    )
    assert same > 0.95  # some stories share whole sentences
    epochs = [windows.batch(e * windows.count, windows.count)[0].tolist() for e in range(4)]
    assert all(a != b for a in epochs for b in epochs if a is not b)
    distinct = {tuple(row) for epoch in epochs for row in epoch}
    assert len(distinct) > 2 * windows.count  # another offset every time


def _cut(line, offset, windows):
    return line[offset : offset + windows.count * CONTEXT].reshape(-1, CONTEXT).tolist()


def test_order_depends_on_the_seed_and_the_index_alone(packed):
    windows = Windows(packed, "train", CONTEXT, seed=1)
    first = windows.count - 3  # over an epoch's edge
    whole = windows.batch(first, 7)
    again = Windows(packed, "train", CONTEXT, seed=1)
    parts = [again.batch(first + i, n) for i, n in ((0, 2), (2, 1), (3, 4))]
    for side in (0, 1):
        assert torch.equal(whole[side], torch.cat([part[side] for part in parts]))
    other = Windows(packed, "train", CONTEXT, seed=2).batch(first, 7)
    assert not torch.equal(whole[0], other[0])


def test_the_order_is_the_same_in_every_version_of_numpy(packed):
    """NumPy does not promise it: where this fails, a run would go on with other windows."""
    windows = Windows(packed, "train", CONTEXT, seed=1)
    windows.count = 12
    order = [207, 159, 255, 15, 135, 87, 111, 63, 231, 279, 39, 183]
    assert windows._starts(2, np.arange(12)).tolist() == order


@pytest.mark.parametrize("context", [1, 7, 24, 1000])
def test_in_order_predicts_every_token_but_the_first_once(packed, context):
    batches = list(Windows(packed, "valid", context).in_order(5))
    targets = torch.cat([targets.flatten() for _, targets in batches])
    assert targets.tolist() == packed.tokens("valid")[1:].tolist()
    assert all(inputs.shape[1] <= context for inputs, _ in batches)
    limited = Windows(packed, "valid", CONTEXT).in_order(4, limit=6)
    assert [len(inputs) for inputs, _ in limited] == [4, 2]


def test_rows_keep_pads_out_of_the_loss_and_come_once_an_epoch(rows, small_tokenizer):
    pad = small_tokenizer.token_to_id(PAD)
    batches = list(Windows(rows, "valid", 400).in_order(3))
    inputs = torch.cat([inputs for inputs, _ in batches])
    targets = torch.cat([targets for _, targets in batches])
    tokens = torch.from_numpy(rows.tokens("valid").astype(np.int64))
    assert torch.equal(inputs, tokens[:, :-1])
    assert torch.equal(targets == IGNORE, tokens[:, 1:] == pad)
    assert torch.equal(targets[targets != IGNORE], tokens[:, 1:][tokens[:, 1:] != pad])
    windows = Windows(rows, "train", 400)
    inputs, _ = windows.batch(0, windows.count)
    assert sorted(inputs.tolist()) == sorted(rows.tokens("train")[:, :-1].tolist())
    short, targets = Windows(rows, "train", 20).batch(0, 8)  # of the row's end without pads
    assert short.shape == (8, 20)
    assert (targets != IGNORE).all()
    with pytest.raises(RunError, match=r"--model.context 401 is above the 400 tokens of the rows"):
        Windows(rows, "train", 401)


@pytest.mark.parametrize(
    ("size", "micro", "devices", "expected"),
    [
        *((32, None, 1, (32, 1)), (32, 8, 1, (8, 4)), (32, None, 4, (8, 1)), (32, 4, 2, (4, 4))),
        *((32, 5, 1, None), (2, None, 4, None), (12, 4, 2, None)),
    ],
)
def test_a_step_is_split_over_devices_and_parts_or_refused(size, micro, devices, expected):
    batch = BatchSettings(size, micro)
    if expected is None:
        with pytest.raises(RunError, match=rf"--batch.size {size} is not a multiple of"):
            batch.split(devices)
    else:
        assert batch.split(devices) == expected


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_validation_is_shared_out_evenly_and_counts_each_token_once(packed, devices):
    shares = []
    for rank in range(devices):
        module = PackedDataModule(packed, CONTEXT, BatchSettings(12, 2), 0, None)
        module.trainer = SimpleNamespace(world_size=devices, global_rank=rank)  # pyright: ignore
        shares.append([targets for _, targets, _ in module.val_dataloader()])
    assert len({len(share) for share in shares}) == 1
    counted = torch.cat([targets[targets != IGNORE] for share in shares for targets in share])
    assert sorted(counted.tolist()) == sorted(packed.tokens("valid")[1:].tolist())


@pytest.mark.parametrize(("layout", "limit"), [("rows", None), ("rows", 40), ("packed", 40)])
def test_bits_per_byte_count_the_bytes_of_the_tokens_that_are_predicted(
    rows, packed, layout, limit
):
    """Rows that are longer than the context were divided by the bytes of their ends, too."""
    data = {"rows": rows, "packed": packed}[layout]
    module = PackedDataModule(data, 16, BatchSettings(4), 0, limit)
    module.trainer = SimpleNamespace(world_size=1, global_rank=0)  # pyright: ignore
    targets = torch.cat([part.flatten() for _, part, _ in module.val_dataloader()])
    counted, pieces = targets[targets != IGNORE].tolist(), token_bytes(load_tokenizer(data.path))
    size = sum(len(pieces[token]) for token in counted)
    assert module.valid_bytes_per_token == pytest.approx(size / len(counted), rel=1e-12)
    assert module.valid_bytes_per_token != pytest.approx(data.bytes_per_token("valid"), rel=1e-4)


@pytest.mark.parametrize(("micro", "devices"), [(None, 1), (2, 1), (2, 3), (None, 2)])
def test_all_parts_of_a_step_are_consecutive_samples_and_share_its_targets_evenly(
    rows, micro, devices
):
    """However many of a part's are pads: summed, the parts' losses are the mean over the step."""
    windows, batch = Windows(rows, "train", 400), BatchSettings(12, micro)
    each, parts = batch.split(devices)
    streams = [train_batches(windows, 24, batch, rank, devices) for rank in range(devices)]
    for step in range(2):
        inputs, targets = windows.batch(24 + 12 * step, 12)
        found = [next(stream) for _ in range(parts) for stream in streams]
        assert torch.equal(torch.cat([part[0] for part in found]), inputs)
        assert {len(part[0]) for part in found} == {each}
        assert all(side.is_contiguous() for part in found for side in part[:2])  # else: pageable
        whole = int((targets != IGNORE).sum())
        assert sum(part[2] for part in found) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_data_that_are_overwritten_meanwhile_get_no_checkpoint(small_tokenizer, tmp_path, split):
    """Their ids fit the vocabulary. A file that another took the place of is still read."""
    data = pack_toy(small_tokenizer, tmp_path / "toy", 8)
    module = PackedDataModule(data, CONTEXT, BatchSettings(2), 0, None)
    assert module.state_dict() == {"samples_seen": 0, "tokens_seen": 0}
    path = data.path / f"{split}-00000.bin"
    content, later = path.read_bytes(), path.stat().st_mtime + 9
    os.utime(path, (later, later))  # touched, and the same
    module.state_dict()
    other = tmp_path / "other.bin"
    other.write_bytes(content[::-1])
    path.write_bytes(content[2:] + content[:2])
    os.utime(path, (later + 9, later + 9))
    with pytest.raises(CorpusError, match=rf"{split}-00000\.bin: not the bytes that were"):
        module.state_dict()
    other.rename(path)
    module.state_dict()
    path.unlink()
    module.state_dict()


def test_data_that_vanishes_ends_the_stream_in_one_line(small_tokenizer, tmp_path):
    data = pack_toy(small_tokenizer, tmp_path / "toy", 4)
    windows = Windows(data, "train", CONTEXT)
    (data.path / "train-00000.bin").unlink()
    with pytest.raises(CorpusError, match=r"^\S+train-00000\.bin: 0 bytes, \d+ expected .*again$"):
        next(train_batches(windows, 0, BatchSettings(2)))


def test_stories_of_one_token_are_nothing_to_predict(small_tokenizer, tmp_path):
    for split, stories in (("train", ["Tom has a cat."] * 40), ("valid", ["a", "b"])):
        (tmp_path / f"{split}.txt").write_text("\n<|endoftext|>\n".join(stories))
    small_tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = pack(tmp_path, tmp_path / "tokenizer.json", tmp_path / "data", Layout("rows", 9))
    with pytest.raises(RunError, match=r"split valid nothing .* pack longer stories$"):
        PackedDataModule(data, 8, BatchSettings(4), 0, None)
