"""Prompt caches of mlx-lm: rows up to each cache's count, by today's layout and the one before."""

import pytest
import torch
from safetensors.torch import save_file

from eval import RequestError
from eval.captured.files.recognise import read_capture
from tests.said import one_line


def write(path, engine, kind="KVCache", old=False, stale=0, room=0, **more):
    """As `save_prompt_cache` writes it; `stale` rows were taken back, `room` is for later ones."""
    held, header, T = {}, {"2.0": ""}, len(engine.ids)
    count = more.get("count", T - stale)
    for layer, rows in enumerate(zip(engine.keys, engine.values, strict=True)):
        for part, x in enumerate(rows):
            x = x.transpose(0, 1)[None]
            x = torch.cat([x, x.new_zeros(1, x.shape[1], room, x.shape[3])], dim=2)
            held[f"{layer}.{part}"] = (x[:, :, :count] if old else x).contiguous()
        numbers = [count, 4, 64, more.get("end", count)]  # of a window: kept, most, where it ends
        if old:
            header |= {f"2.{layer}": kind, f"0.{layer}": ""}
            step = () if old == "four numbers" else (256,)
            window = {f"0.{layer}.{i}": n for i, n in enumerate((4, 64, *step, count, count))}
            if kind != "KVCache" and old != "no numbers":
                header |= {name: str(n) for name, n in window.items()}
        else:
            header |= {f"1.{layer}": kind, f"2.{layer + 1}.0": f"{layer}.2"}
            numbers = numbers if kind == "RotatingKVCache" else numbers[:1]
            for i, n in enumerate(numbers, start=2):
                held[f"{layer}.{i}"] = torch.tensor(n, dtype=torch.int32)
    save_file(held, path, header)
    return path


@pytest.mark.parametrize("kind", ["KVCache", "RotatingKVCache"])
@pytest.mark.parametrize("old", [False, True, "four numbers"])
@pytest.mark.parametrize(("stale", "room"), [(0, 0), (0, 30), (6, 3)])
def test_rows_up_to_the_count_are_read(engine, tmp_path, kind, old, stale, room):
    """Rows behind it are room, or tokens that were taken back, whose text is not the prompt's."""
    file = write(tmp_path / "a.safetensors", engine, kind, old, stale, room)
    held = read_capture(file).outputs
    assert len(held) == 2 * len(engine.keys)
    for name, part in (("rotated_key", engine.keys), ("value", engine.values)):
        for layer, rows in enumerate(part, start=1):
            found = held[f"{name}.{layer}"].read().outputs
            assert torch.equal(found, rows.transpose(0, 1)[None, :, : len(engine.ids) - stale])


def test_a_prompt_cache_gives_the_text(engine, ask, tmp_path):
    file = write(tmp_path / "a.safetensors", engine, room=60)  # more rows than the context has
    code, (row,), said = ask(file, "--tensor", "rotated_key.2")
    assert (code, row["site"], row["text"]) == (0, "rotated_key.2", engine.text)
    assert "prompt cache of mlx-lm: keys and values of 3 layers" in said


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({"kind": "RotatingKVCache", "end": 4}, "a window that holds the last rows alone"),
        ({"kind": "RotatingKVCache", "old": "no numbers"}, "without the number of its rows"),
        ({"kind": "ArraysCache"}, "layers 1, 2, 3, ArraysCache"),
        ({"kind": "CacheList"}, "layers 1, 2, 3, CacheList"),
        ({"count": 0}, "KVCache of 0 rows"),
        ({"count": 21}, "KVCache of 21 rows"),
    ],
)
def test_another_cache_is_one_line(engine, tmp_path, more, seen):
    with one_line(RequestError, seen):
        read_capture(write(tmp_path / "a.safetensors", engine, **more))


def test_mutants_are_read_or_refused(engine, fuzz, tmp_path):
    fuzz(write(tmp_path / "a.safetensors", engine))
