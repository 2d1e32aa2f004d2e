"""The model directory: whole or not there, checked when read; and what killed writers leave."""

import errno
import json
import os
import resource
import shutil
import signal
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from arch import ModelError, export_hub, load_model, save_model
from arch.mixers import Triangle
from arch.storage.files import POINTER, remove_leftovers, write_directory, write_file
from tests.arch.cases import MIXERS, random_tokens, scramble, small_model, tokenizer_json
from tests.said import one_line

FILES = {"model.safetensors", "config.json", "tokenizer.json", "meta.json"}


@pytest.fixture
def directory(tmp_path):
    return save_model(tmp_path / "runs" / "a", small_model("flat"), tokenizer_json(), {"step": 3})


@pytest.mark.parametrize("mixer", MIXERS)
def test_what_is_loaded_is_what_was_saved_bit_for_bit(tmp_path, mixer):
    dtype = torch.bfloat16 if mixer.startswith(("flat", "attention")) else torch.float32
    model = small_model(mixer, tied=mixer == "flat").to(dtype)
    save_model(tmp_path / "m", model, tokenizer_json(), {})
    chance = torch.get_rng_state()
    loaded = load_model(tmp_path / "m").model
    assert torch.equal(torch.get_rng_state(), chance)  # no weight is drawn
    assert not loaded.training
    expected = model.state_dict()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, expected[name]), name
    tokens = random_tokens(model)
    assert torch.equal(loaded(tokens), model(tokens))
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_the_working_directory_gives_a_model_its_name(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path / "m")
    save_model(".", small_model("flat"), tokenizer_json(), {})
    assert load_model(tmp_path / "m").meta["name"] == "m"


@pytest.mark.parametrize("write", [save_model, export_hub])
def test_a_compiled_model_is_written_as_it_is(tmp_path, write):
    """What was written could not be opened, or its weights were not used."""
    model, about = small_model("flat", "attention(heads=2)"), (tokenizer_json(), {"name": "m"})
    expected = (write(tmp_path / "plain", model, *about) / "model.safetensors").read_bytes()
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    compiled = torch.compile(model, backend="eager")
    found = write(tmp_path / "compiled", compiled, *about) / "model.safetensors"
    assert found.read_bytes() == expected


def untie(model):
    model.head = nn.Linear(8, 11, bias=False)


@pytest.mark.parametrize("write", [save_model, export_hub])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: prune.l1_unstructured(m.blocks[0].token_mixer.mix, "weight", 0.5), "mix.weight"),
        (lambda m: weight_norm(m.blocks[1].token_mixer.q_proj), "q_proj.weight"),
        (untie, "tied=False"),
    ],
)
def test_a_model_with_other_weights_than_its_configuration_says_is_not_written(
    tmp_path, write, change, named
):
    """It was written by names that nothing opens; a head of its own was lost."""
    model = small_model("flat", "attention(heads=2)", tied=True)
    change(model)
    with one_line(ModelError, named):
        write(tmp_path / "m", model, tokenizer_json(), {"name": "m"})
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("given", ["tokenizer.json", tokenizer_json(12)])
def test_what_is_no_tokenizer_of_the_model_is_not_saved(tmp_path, given):
    with one_line(ModelError, "tokenizer.json"):
        save_model(tmp_path / "m", small_model("flat"), given, {})
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("mixer", ["flat", "rectangular(factor=2)", "headed(heads=4)+kernel"])
def test_nothing_above_a_diagonal_is_saved_or_loaded(tmp_path, mixer):
    model = scramble(small_model(mixer))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_model(tmp_path / "m", model, tokenizer_json(), {})
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    saved = load_file(tmp_path / "m" / "model.safetensors")
    for name, module in model.named_modules():
        if isinstance(module, Triangle):
            assert torch.equal(saved[f"{name}.weight"], weights[f"{name}.weight"].tril())
            saved[f"{name}.weight"] = weights[f"{name}.weight"]  # as another program may write it
    save_file(saved, tmp_path / "m" / "model.safetensors")
    for module in load_model(tmp_path / "m").model.modules():
        if isinstance(module, Triangle):
            assert module.weight.triu(1).count_nonzero() == 0


def test_the_directory_holds_four_files_of_others_formats(directory):
    assert {path.name for path in directory.iterdir()} == FILES
    with safe_open(directory / "model.safetensors", "pt") as weights:
        assert "blocks.0.token_mixer.mix.weight" in list(weights.keys())
    meta = json.loads((directory / "meta.json").read_text())
    assert (meta["schema"], meta["name"], meta["step"]) == (1, "a", 3)
    assert set(meta["versions"]) == {"python", "torch"}
    (directory.parent / "plain").mkdir()
    assert directory.stat().st_mode == (directory.parent / "plain").stat().st_mode


@pytest.mark.parametrize("tied", [False, True])
def test_rows_that_no_token_has_are_trained_with_and_not_loaded(tmp_path, tied):
    model = small_model("flat", vocab_multiple=64, tied=tied)
    assert model.embedding.num_embeddings == model.head.out_features == 64
    assert model(random_tokens(model)).shape[-1] == 11
    save_model(tmp_path / "m", model, tokenizer_json(), {})
    saved = load_file(tmp_path / "m" / "model.safetensors")
    assert saved["embedding.weight"].shape == (64, 8)
    assert ("head.weight" in saved) != tied  # a tied head is saved once
    loaded = load_model(tmp_path / "m")
    assert (loaded.config.vocab_size, loaded.config.vocab_rows) == (11, 11)
    assert loaded.config is loaded.model.config
    assert loaded.model.embedding.weight.shape == loaded.model.head.weight.shape == (11, 8)
    assert (loaded.model.head.weight is loaded.model.embedding.weight) == tied
    tokens = random_tokens(model)
    torch.testing.assert_close(loaded.model(tokens), model(tokens))
    save_model(tmp_path / "again", loaded.model, tokenizer_json(), {})
    assert torch.equal(load_model(tmp_path / "again").model(tokens), loaded.model(tokens))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_permissions_that_flushes_no_directory_is_written(
    directory, monkeypatch, code
):
    """As those of networks and clouds, on which no run could begin."""

    def refuse(path, *_, **__):
        if isinstance(path, str | Path) or stat.S_ISDIR(os.fstat(path).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    save_model(directory, small_model("flat"), tokenizer_json(), {"step": 4})
    assert load_model(directory).meta["step"] == 4


def test_saving_again_replaces_the_directory(directory):
    """Who looked at a model of a run with vim or Jupyter ended that run."""
    for name in ("__pycache__", ".ipynb_checkpoints"):
        (directory / name).mkdir()
    for name in (".DS_Store", "._meta.json", ".meta.json.swp", ".nfs0000000001a2b3c400000001"):
        (directory / name).touch()
    (directory / ".meta.json.x.tmp").touch()  # of a write that was killed
    save_model(directory, small_model("parallel"), tokenizer_json(), {"step": 4})
    loaded = load_model(directory)
    assert (loaded.config.mixers, loaded.meta["step"]) == (("parallel",), 4)
    assert [path.name for path in directory.parent.iterdir()] == ["a"]


def test_a_directory_that_a_process_has_open_on_nfs_is_replaced(directory, monkeypatch):
    """The second time failed: NFS renames such a file, and its folder stays."""
    remove = shutil.rmtree

    def leave_what_is_open(path, **_):
        for file in list(Path(path).rglob("*")):
            if file.name == "model.safetensors":
                file.rename(file.with_name(".nfs0001"))
            elif file.is_file() and not file.name.startswith(".nfs"):
                file.unlink()

    monkeypatch.setattr(shutil, "rmtree", leave_what_is_open)
    for step in (4, 5, 6):
        save_model(directory, small_model("parallel"), tokenizer_json(), {"step": step})
        assert load_model(directory).meta["step"] == step
        remove_leftovers(directory.parent)
    monkeypatch.setattr(shutil, "rmtree", remove)
    remove_leftovers(directory.parent)
    assert [path.name for path in directory.parent.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "held",
    [
        ("chapter.txt",),
        ("config.json", "index.html"),
        ("README.md", "config.json"),
        (*FILES, "notes.txt"),
        (*FILES, ".git"),
        ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
         "tokenizer_config.json"),
    ],
)  # fmt: skip
def test_what_is_no_model_directory_is_not_replaced(tmp_path, held):
    (tmp_path / "thesis").mkdir()
    for name in held:
        (tmp_path / "thesis" / name).write_text("years of work")
    (tmp_path / "file").write_text("years of work")
    for name in ("thesis", "file"):
        for write in (save_model, export_hub):
            with one_line(ModelError, f"{tmp_path / name} is there and is not a model directory"):
                write(tmp_path / name, small_model("flat"), tokenizer_json(), {})
    assert names(tmp_path) == ["file", "thesis"]
    assert names(tmp_path / "thesis") == sorted(held)
    assert {file.read_text() for file in (tmp_path / "thesis").iterdir()} == {"years of work"}


def _save_and_be_killed(directory, moment):
    """In a child process: saves over `directory`; SIGKILL at the given moment of writing."""
    moments = iter(range(1000))

    def dies(real):
        def function(*arguments, **options):
            if next(moments) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return function

    with warnings.catch_warnings():  # from 3.12 on, forking with threads about warns
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        for name in ("fsync", "rename", "replace", "open"):
            setattr(os, name, dies(getattr(os, name)))
        save_model(directory, small_model("parallel"), tokenizer_json(), {"step": 4})
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.slow
def test_a_killed_save_leaves_the_old_directory_or_the_new_one_whole(directory):
    moment, found = 0, []
    while _save_and_be_killed(directory, moment):
        remove_leftovers(directory.parent)  # as the next writer does
        loaded = load_model(directory)
        assert {path.name for path in directory.iterdir()} == FILES
        found.append((loaded.config.mixers, loaded.meta["step"]))
        moment += 1
    assert set(found) == {(("flat",), 3), (("parallel",), 4)}
    assert found == sorted(found)  # old until the swap, new from then on
    assert moment > 12  # each file's write and flush, and more
    assert [path.name for path in directory.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("over", [True, False])
def test_a_full_disk_leaves_everything_as_it_was(directory, over):
    target = directory if over else directory.parent / "b"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # no file may grow further
    try:
        with pytest.raises(OSError, match="File too large"):
            save_model(target, small_model("parallel"), tokenizer_json(), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in directory.parent.iterdir()] == ["a"]
    assert load_model(directory).meta["step"] == 3


def spoil(name: str, content: bytes | dict[str, Any]) -> Callable[[Path], Any]:
    """Writes a file of a directory, or fields of one that is JSON."""

    def change(directory: Path) -> None:
        file = directory / name
        if isinstance(content, dict):
            file.write_text(json.dumps(json.loads(file.read_text()) | content))
        else:
            file.write_bytes(content)

    return change


MISFIT = "{0}: the weights do not fit the configuration: "
OTHER = {size: tokenizer_json(size).encode() for size in (11, 12)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "{0}: no such model directory"),
        (lambda d: [(d / f).unlink() for f in ("model.safetensors", "meta.json")],
         "{0} is not a model directory: it has no model.safetensors, meta.json"),
        (spoil("tokenizer.json", OTHER[12]), "tokenizer.json has 12 entries, the model has 11"),
        (spoil("tokenizer.json", OTHER[11].replace(b'"0"', b'"zero"')), "tokenizer.json has hash "),
        *((spoil("tokenizer.json", text), "tokenizer.json is not a tokenizer file")
          for text in (b"{", b"[]", b'{"model": {}}', b"{}",
                       b'{"added_tokens": [], "model": {"vocab": [[]]}}',
                       b'{"added_tokens": [], "model": {"vocab": {"a": Infinity}}}')),
        (spoil("config.json", {"context": 13}), "mix.bias is (12,), the configuration says (13,)"),
        (spoil("config.json", {"n_layers": 3}), f"{MISFIT}n_layers is 3, the weights have 2"),
        (spoil("config.json", {"n_layers": 1}), f"{MISFIT}n_layers is 1, the weights have 2"),
        (spoil("config.json", {"d_ff": 15}), "(and 3 more)"),
        (spoil("config.json", {"mixers": ["parallel"]}), "the configuration says (2, 12, 12)"),
        (spoil("config.json", {"mixers": ["mamba"]}), "there is no 'mamba'"),
        (spoil("config.json", b"{"), "config.json is not JSON: "),
        (spoil("config.json", b"\xff\xfe"), "config.json is not a text file in UTF-8"),
        (spoil("meta.json", b"{"), "meta.json is not JSON: "),
        (spoil("meta.json", b"[]"), "meta.json is not a JSON object"),
        (spoil("meta.json", {"schema": 2}), "meta.json has schema 2"),
        (spoil("model.safetensors", b"cut"), "model.safetensors cannot be read: "),
        *((spoil(file, POINTER + b"v1\noid"), f"{file} is a pointer of Git LFS")
          for file in ("model.safetensors", "config.json", "tokenizer.json")),
    ],
)  # fmt: skip
def test_what_is_no_whole_model_is_refused(directory, change, message):
    change(directory)
    with one_line(ModelError, message.format(directory)):
        load_model(directory)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_cannot_be_flushed_leaves_the_old_one(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_file(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_file_gets_the_permissions_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new" / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "file").stat().st_mode & 0o777 == 0o640


def test_names_of_new_folders_reach_the_disk(tmp_path, monkeypatch):
    flushed, opened, fsync, open_ = [], {}, os.fsync, os.open

    def opening(path, *arguments, **named):
        handle = open_(path, *arguments, **named)  # pyright: ignore[reportArgumentType]
        opened[handle] = str(path)
        return handle

    def flushing(handle):
        flushed.append(opened.get(handle))
        fsync(handle)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", flushing)
    write_file(tmp_path / "a" / "b" / "file", b"")
    folders = [str(tmp_path), str(tmp_path / "a")]
    assert flushed[:2] == folders
    assert flushed[-1] == str(tmp_path / "a" / "b")


def test_sweep_removes_what_killed_writers_left(tmp_path):
    write_file(tmp_path / "file", b"whole")
    (tmp_path / ".file.x7.tmp").write_bytes(b"half")
    (tmp_path / ".model.x8.tmp").mkdir()
    (tmp_path / ".model.x8.tmp" / "config.json").touch()
    (tmp_path / ".hidden").touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "file"]
    remove_leftovers(tmp_path / "nowhere")


def test_sweep_gives_a_directory_back_its_name(tmp_path):
    """One that is replaced is called `.NAME.old` between two renames."""
    for name in ("first", "second"):
        write_directory(tmp_path / name, {"config.json": b""})
    (tmp_path / "first").rename(tmp_path / ".first.old")
    (tmp_path / ".second.old").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["first", "second"]
    assert (tmp_path / "first" / "config.json").is_file()
