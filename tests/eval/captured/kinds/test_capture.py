"""Captured here and audited there: the files that `capture` writes are vLLM's."""

import resource

import pytest
import torch
from safetensors.torch import load_file

from eval import RequestError, activations
from eval.__main__ import main
from tests.said import one_line

TEXTS = "Tom had a red ball.", "The hen ran."


def test_what_capture_writes_is_audited(model_directory, ask, tmp_path, capsys):
    """Layers stand in their order, in whichever they are given: as given, none was found."""
    model, out = str(model_directory()), tmp_path / "captured"
    command = ["capture", model, "--text", *TEXTS, "--out", str(out), "--layers", "2", "1"]
    assert main([*command, "--batch-size", "1"]) == 0
    assert "text-1.safetensors" in capsys.readouterr().out
    for number, text in enumerate(TEXTS):
        path = out / f"text-{number}.safetensors"
        held = load_file(path)
        T = len(held["token_ids"])
        assert held["hidden_states"].shape == (T, 2, 32)
        assert held["token_ids"].dtype == torch.int64
        assert [row["text"] for row in ask(path, model=model)[1]] == [text]
        code, (row,), _ = ask(path, "--verify", "--layer", "2", model=model)
        assert (code, row["text"], row["differs"]) == (0, text, [])


@pytest.mark.parametrize("sites", ["mixer.1", "block.1+2"])
def test_other_sites_are_not_written(model_directory, tmp_path, sites):
    with one_line(RequestError, sites):
        activations(str(model_directory()), TEXTS, sites, out=tmp_path / "captured")
    assert not (tmp_path / "captured").exists()


def test_files_of_an_earlier_capture_are_not_mixed_with_others(model_directory, tmp_path, capsys):
    model, out = str(model_directory()), tmp_path / "captured"
    words = ["capture", model, "--out", str(out), "--layers", "1", "--text"]
    assert main([*words, *TEXTS]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main([*words, "The dog."]) == 2
    assert f"--out {out}: " in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_full_disk_is_an_error_that_names_the_file(model_directory, tmp_path, capsys):
    """It was a traceback."""
    model, out = str(model_directory()), tmp_path / "captured"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # no file may grow further
    try:
        code = main(["capture", model, "--text", *TEXTS, "--out", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {out}/text-0.safetensors: ")
    assert not any(out.iterdir())


def test_a_text_beyond_the_context_is_named(model_directory, tmp_path, capsys):
    """A flag that the command has not was."""
    words = ["capture", str(model_directory()), "--out", str(tmp_path / "captured"), "--text"]
    assert main([*words, "a" * 500]) == 2
    said = capsys.readouterr().err
    assert "text 'aaa" in said
    assert "--length" not in said
