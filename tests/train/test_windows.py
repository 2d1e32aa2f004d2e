"""Which tokens make a batch, in both layouts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arch import load_model
from tests.train.cases import pack_toy
from tokenizer import PAD, CorpusError
from tokenizer.pack import Layout
from train.__main__ import main
from train.data import IGNORE, PackedDataModule, TrainBatches, Windows
from train.settings import BatchSettings, RunError

CONTEXT = 24


@pytest.fixture(scope="module")
def packed(stories):
    return stories


@pytest.fixture(scope="module", params=["left", "right"])
def rows(request, small_tokenizer, tmp_path_factory):
    layout = Layout("rows", 400, request.param)
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "rows", 40, layout)


def test_targets_are_the_tokens_after_the_inputs(packed):
    windows = Windows(packed, "train", CONTEXT)
    inputs, targets = windows.batch(3, 5)
    assert inputs.shape == targets.shape == (5, CONTEXT)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    line = packed.tokens("train").astype(np.int64)
    found = [
        i
        for i in range(len(line) - CONTEXT)
        if np.array_equal(line[i : i + CONTEXT], inputs[0].numpy())
    ]
    assert line[found[0] + CONTEXT] == targets[0, -1]


def test_batches_are_contiguous(packed, rows):
    """A GPU copies anything else by way of pageable memory, pinned or not."""
    for data in (packed, rows):
        windows = Windows(data, "train", CONTEXT)
        inputs, targets, _ = next(iter(TrainBatches(windows, 0, BatchSettings(4))))
        assert inputs.is_contiguous()
        assert targets.is_contiguous()
        assert all(side.is_contiguous() for side in next(windows.in_order(4)))


def test_an_epoch_holds_every_window_once(packed):
    windows = Windows(packed, "train", CONTEXT, seed=3)
    inputs, _ = windows.batch(0, windows.count)
    distinct = {tuple(row) for row in inputs.tolist()}
    assert len(distinct) > 0.95 * windows.count  # some stories share whole sentences
    line = packed.tokens("train")
    whole = [sorted(line[o : o + windows.count * CONTEXT].tolist()) for o in range(CONTEXT)]
    assert sorted(inputs.flatten().tolist()) in whole


def test_every_epoch_has_another_order_and_another_offset(packed):
    windows = Windows(packed, "train", CONTEXT)
    epochs = [windows.batch(e * windows.count, windows.count)[0].tolist() for e in range(4)]
    assert all(a != b for a in epochs for b in epochs if a is not b)
    distinct = {tuple(row) for epoch in epochs for row in epoch}
    assert len(distinct) > 2 * windows.count


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


@pytest.mark.parametrize("context", [1, 7, 24, 1000])
def test_in_order_predicts_every_token_but_the_first_once(packed, context):
    batches = list(Windows(packed, "valid", context).in_order(5))
    targets = torch.cat([targets.flatten() for _, targets in batches])
    assert targets.tolist() == packed.tokens("valid")[1:].tolist()
    assert all(inputs.shape[1] <= context for inputs, _ in batches)


def test_in_order_stops_after_so_many_windows(packed):
    batches = list(Windows(packed, "valid", CONTEXT).in_order(4, limit=6))
    assert [len(inputs) for inputs, _ in batches] == [4, 2]


def test_rows_keep_pads_out_of_the_loss(rows, small_tokenizer):
    pad = small_tokenizer.token_to_id(PAD)
    windows = Windows(rows, "valid", 400)
    batches = list(windows.in_order(3))
    inputs = torch.cat([inputs for inputs, _ in batches])
    targets = torch.cat([targets for _, targets in batches])
    tokens = torch.from_numpy(rows.tokens("valid").astype(np.int64))
    assert torch.equal(inputs, tokens[:, :-1])
    assert torch.equal(targets == IGNORE, tokens[:, 1:] == pad)
    assert torch.equal(targets[targets != IGNORE], tokens[:, 1:][tokens[:, 1:] != pad])


def test_a_shorter_context_sees_the_rows_end_without_pads(rows):
    inputs, targets = Windows(rows, "train", 20).batch(0, 8)
    assert inputs.shape == targets.shape == (8, 20)
    assert (targets != IGNORE).all()


def test_a_row_is_drawn_once_an_epoch(rows):
    windows = Windows(rows, "train", 400)
    inputs, _ = windows.batch(0, windows.count)
    assert sorted(inputs.tolist()) == sorted(rows.tokens("train")[:, :-1].tolist())


def test_a_context_above_the_rows_is_refused(rows):
    with pytest.raises(RunError, match=r"--model.context 401 is above the 400 tokens of the rows"):
        Windows(rows, "train", 401)


@pytest.mark.parametrize(
    ("size", "micro", "devices", "expected"),
    [(32, None, 1, (32, 1)), (32, 8, 1, (8, 4)), (32, None, 4, (8, 1)), (32, 4, 2, (4, 4))],
)
def test_a_step_is_split_over_devices_and_parts(size, micro, devices, expected):
    assert BatchSettings(size, micro).split(devices) == expected


@pytest.mark.parametrize(("size", "micro", "devices"), [(32, 5, 1), (2, None, 4), (12, 4, 2)])
def test_a_step_that_does_not_divide_is_refused(size, micro, devices):
    with pytest.raises(RunError, match=rf"--batch.size {size} is not a multiple of"):
        BatchSettings(size, micro).split(devices)


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


def test_all_devices_together_see_consecutive_samples(packed):
    windows = Windows(packed, "train", CONTEXT)
    streams = [
        iter(TrainBatches(windows, 7, BatchSettings(12, 2), rank, devices=3)) for rank in range(3)
    ]
    inputs = torch.cat([next(stream)[0] for _ in range(4) for stream in streams])
    assert torch.equal(inputs, windows.batch(7, 24)[0])


def test_data_that_vanishes_ends_the_stream_in_one_line(small_tokenizer, tmp_path):
    data = pack_toy(small_tokenizer, tmp_path / "toy", 4)
    windows = Windows(data, "train", CONTEXT)
    (data.path / "train-00000.bin").unlink()
    with pytest.raises(CorpusError, match=r"^\S+train-00000\.bin: 0 bytes, \d+ expected .*again$"):
        next(iter(TrainBatches(windows, 0, BatchSettings(2))))


@pytest.mark.parametrize(("micro", "devices"), [(None, 1), (2, 1), (2, 3), (None, 2)])
def test_the_parts_of_a_step_share_its_targets_evenly(rows, micro, devices):
    """However many of a part's are pads: summed, the parts' losses are the mean over the step."""
    windows = Windows(rows, "train", 400)
    batch = BatchSettings(12, micro)
    each, parts = batch.split(devices)
    for rank in range(devices):
        stream = iter(TrainBatches(windows, 24, batch, rank, devices))
        for step in range(2):
            targets = windows.batch(24 + 12 * step, 12)[1]
            for _ in range(parts):
                inputs, _, loss_denominator = next(stream)
                assert len(inputs) == each
                whole = int((targets != IGNORE).sum())
                assert loss_denominator * parts * devices == pytest.approx(whole, rel=1e-12)


def test_the_reference_recipe_runs_on_rows(rows, tmp_path):
    sizes = "--model.vocab_size 400 --model.context 400 --model.d_model 8 --model.n_layers 1"
    sizes += " --batch.size 2 --trainer.max_steps 2 --schedule.warmup_steps 1 --wandb disabled"
    flags = [*sizes.split(), "--precision", "32-true", "--trainer.accelerator", "cpu"]
    where = ["--data", str(rows.path), "--run", str(tmp_path / "run")]
    assert main(["fit", "--config", "reference", *where, *flags]) == 0
    model = load_model(tmp_path / "run" / "models" / "step-000002").model
    assert isinstance(model.norm, torch.nn.Identity)
    assert model.embedding.weight.detach().std() == pytest.approx(1, abs=0.05)
