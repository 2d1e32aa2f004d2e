"""Fitted things on the disk: the same tensors back, and damaged files refused in a line."""

import pytest
import torch

from eval import RequestError
from eval.artefacts import FOLDER, load, save


def test_what_was_saved_comes_back(tmp_path):
    tensors = {"a": torch.randn(3, 2).T, "b.c": torch.arange(4)}
    assert load(tmp_path, "key") is None
    save(tmp_path, "key", tensors, {"steps": 3})
    artefact = load(tmp_path, "key")
    assert artefact
    assert artefact.about == {"steps": 3}
    assert artefact.tensors.keys() == tensors.keys()
    assert all(artefact.tensors[name].equal(tensors[name]) for name in tensors)


@pytest.mark.parametrize("end", ["safetensors", "json"])
@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_damaged_files_are_refused_in_a_line(tmp_path, end, damage):
    save(tmp_path, "key", {"a": torch.zeros(2)}, {})
    file = tmp_path / FOLDER / f"key.{end}"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content if damage is None else damage)
    with pytest.raises(
        RequestError, match=r"key.safetensors: a damaged artefact .*delete it"
    ) as told:
        load(tmp_path, "key")
    assert len(str(told.value).splitlines()) == 1
    assert str(told.value).endswith("delete it and key.json, and it is fitted again")


def test_tensors_without_a_record_are_none(tmp_path):
    """As an interruption between the two files leaves them."""
    save(tmp_path, "key", {"a": torch.zeros(2)}, {})
    (tmp_path / FOLDER / "key.json").unlink()
    assert load(tmp_path, "key") is None
