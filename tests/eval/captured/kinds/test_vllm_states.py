"""vLLM's hidden states: the ids in clear are read, and the answer of an inversion beside them."""

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from eval import RequestError
from eval.captured.files.axes import take_layer
from eval.captured.files.clear import read_texts
from eval.captured.files.recognise import read_capture
from eval.captured.files.stored import read_stored
from tests.arch.cases import byte_tokenizer
from tests.said import one_line


def write(path, states, ids, **changes):
    """As the connector writes a request: layers on axis 1, ids beside."""
    held = {"hidden_states": torch.stack(states, 1), "token_ids": ids} | changes
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, path)
    return path


@pytest.fixture
def file(engine, tmp_path):
    return write(tmp_path / "cmpl-1.safetensors", engine.states[1:], engine.ids)


def test_the_ids_in_the_file_are_its_text(engine, ask, file):
    code, rows, said = ask(file)
    assert code == 0
    assert [row["text"] for row in rows] == [engine.text]
    assert "vLLM hidden states: 20 tokens, 2 layers" in said


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--tensor", "hidden_states.0"], torch.bfloat16),
        (["--layer", "2"], torch.float32),
    ],
)
def test_the_inversion_agrees_with_the_ids(engine, ask, tmp_path, words, kind):
    states = [state.to(kind) for state in engine.states[1:]]
    file = write(tmp_path / "a.safetensors", states, engine.ids)
    code, (row,), _ = ask(file, "--verify", *words)
    assert code == 0
    assert row["text"] == engine.text
    assert row["site"] == ("block.2" if "--layer" in words else "block.1")
    assert row["differs"] == []


def test_of_every_layer_the_site_is_found(engine, ask, tmp_path):
    file = write(tmp_path / "a.safetensors", engine.states[::2], engine.ids)
    code, rows, _ = ask(file, "--verify")
    assert code == 0
    assert [row["site"] for row in rows] == ["block.0", "block.2"]
    assert {row["text"] for row in rows} == {engine.text}


def test_a_batch_of_one_beside_its_ids_is_no_file_of_vllm(engine, ask, tmp_path):
    """Its second axis has the positions, as the ids have, and not the layers."""
    file = tmp_path / "a.safetensors"
    save_file({"hidden_states": engine.states[1][None], "token_ids": engine.ids}, file)
    code, (row,), said = ask(file, "--layer", "1", "--tensor", "hidden_states")
    assert (code, row["text"]) == (0, engine.text)
    assert "vLLM" not in said


def test_false_ids_are_found_out(engine, ask, tmp_path):
    ids = engine.ids.clone()
    ids[[3, 7]] += 1
    file = write(tmp_path / "a.safetensors", engine.states[1:2], ids)
    code, (row,), _ = ask(file, "--verify", "--layer", "1")
    assert (code, row["text"], row["differs"]) == (0, engine.text, [3, 7])


def test_a_file_that_is_being_written_is_refused(ask, file):
    lock = file.with_name(file.name + ".lock")
    with lock.open("w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        code, _, said = ask(file)
        assert code == 2
        assert "is being written" in said.splitlines()[-1]
    assert ask(file)[0] == 0


@pytest.mark.parametrize(("where", "number"), [("fcntl.flock", errno.ENOLCK),
                                               ("pathlib.Path.open", errno.EACCES)])  # fmt: skip
def test_a_lock_that_cannot_be_taken_is_said(file, monkeypatch, capsys, where, number):
    """A disk without locks, or a lock of another user's: the file was refused for ever."""
    Path(f"{file}.lock").touch()
    used = Path.open if where.endswith("open") else fcntl.flock

    def refuse(path, *more):
        if where.endswith("open") and not str(path).endswith(".lock"):
            return used(path, *more)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(where, refuse)
    assert read_capture(file).outputs
    assert f"{file}.lock: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words", "seen"),
    [
        ({"token_ids": torch.arange(7)}, [], "token_ids (7,)"),
        ({"token_ids": torch.full((20,), 99_999)}, [], "token id 99999"),
        ({"token_ids": torch.zeros(20)}, [], "float32"),
        ({"hidden_states": torch.ones(20, 1, 32, dtype=torch.uint8)}, [], "uint8"),
        ({}, ["--page", "a.html"], "add --verify"),
        ({}, ["--tensor", "hidden_states.0"], "--tensor: the ids stand in"),
        ({}, ["--layer", "1"], "--layer: the ids stand in"),
        ({}, ["--part", "block"], "--part: the ids stand in"),
        ({}, ["--positions", "0"], "--positions: the ids stand in"),
        ({}, ["--first", "0"], "--first: the ids stand in"),
        ({}, ["--stored", "fp32"], "--stored: the ids stand in"),
        ({}, ["--computed", "bf16"], "--computed: the ids stand in"),
        ({}, ["--solver", "nonsense"], "--solver: the ids stand in"),
        ({}, ["--verify", "--first", "3"], "--first 3: the ids in"),
        ({}, ["--scale", "other"], "leave it out"),
        ({}, ["--tensor", "other"], "hidden_states.0"),
        ({}, ["--verify", "--layer", "9"], "9 is not among them"),
        ({"hidden_states": torch.ones(1, 19, 32)}, ["--verify"], "save (T, width)"),
    ],
)
def test_what_cannot_be_read_is_one_line(engine, ask, tmp_path, changes, words, seen):
    file = write(tmp_path / "a.safetensors", engine.states[1:], engine.ids, **changes)
    code, rows, said = ask(file, *words)
    assert (code, rows) == (2, None)
    assert said.splitlines()[-1].startswith("error: ")
    assert seen in said.splitlines()[-1]


def test_ids_of_a_vocabulary_with_gaps_are_read_or_refused():
    """Its last ids were refused, as beyond the number of tokens; those of a gap left no trace."""
    known = json.loads(byte_tokenizer().to_str())
    known["model"]["vocab"]["zz"] = 300
    tokenizer = Tokenizer.from_str(json.dumps(known))
    T = tokenizer.get_vocab()["T"]
    assert read_texts("a", [[T, 300]], tokenizer) == ["Tzz"]
    with one_line(RequestError, "token id 280: --model has 259 ids, up to 300, and not this one"):
        read_texts("a", [[T, 280]], tokenizer)


def test_ids_are_read_where_states_of_the_last_tokens_alone_stand(engine, ask, tmp_path):
    states = [state[8:] for state in engine.states[1:]]
    file = write(tmp_path / "a.safetensors", states, engine.ids)
    code, (row,), _ = ask(file)
    assert (code, row["text"]) == (0, engine.text)
    code, rows, said = ask(file, "--verify")
    assert (code, rows) == (2, None)
    assert "12 of its 20 tokens" in said.splitlines()[-1]
    code, rows, said = ask(file, "--layer", "1")  # the fix was --verify, which is refused
    assert (code, rows) == (2, None)
    assert "error: --layer: the ids stand in" in said
    assert "--verify" not in said


@pytest.mark.parametrize("shape", [(20, 1, 1), (20, 1)])
def test_states_in_fp8_have_a_scale_for_each_token(engine, opened, tmp_path, shape):
    """As a connector of speculators writes them: they were taken for prompts."""
    states = torch.stack(engine.states[1:], 1)
    scale = states.abs().amax((1, 2), keepdim=True) / 448
    codes = (states / scale).to(torch.float8_e4m3fn)
    more = {"hidden_states": codes, "hidden_states_scales": scale.view(shape)}
    file = write(tmp_path / "a.safetensors", engine.states, engine.ids, **more)
    capture, stack = read_capture(file), read_capture(file, layer=2).outputs["hidden_states"]
    assert capture.ids == [engine.ids.tolist()]
    taken = take_layer(opened["llama"].model, stack.read(), 2, None)
    for raw in (capture.outputs["hidden_states.1"].read(), taken):
        stored = read_stored(raw.outputs, scale=raw.scale)
        assert torch.allclose(stored.values[0], engine.states[2], atol=float(stored.step.max()))


def test_other_tensors_beside_the_states_are_named(engine, tmp_path):
    """As keys, which a connector of speculators writes; beside a mask there are prompts."""
    keys = torch.ones(20, 2, 8)
    file = write(tmp_path / "a.safetensors", engine.states[1:], engine.ids, kv_last_local_k=keys)
    capture = read_capture(file)
    assert list(capture.outputs) == ["hidden_states.0", "hidden_states.1"]
    assert "not read: kv_last_local_k" in capture.kind
    mask = torch.ones(20, 2)
    file = write(tmp_path / "b.safetensors", engine.states[1:], engine.ids, attention_mask=mask)
    assert not read_capture(file).kind


def test_mutants_are_read_or_refused(fuzz, file):
    assert fuzz(file) > 10
