"""`python -m arch`: describing, importing and exporting models."""

import errno
import io
import json
import os
import shutil
import sys
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

from arch import count_parameters, load_model, save_model
from arch.__main__ import main
from arch.storage.runs import shipped_models
from scripts.bench.baselines import reference
from tests.arch.cases import byte_tokenizer, random_tokens, small_model, tokenizer_json
from tests.said import complaint

LLAMA = {"channel_mixer": "swiglu", "norm": "rmsnorm"}


@pytest.fixture
def llama(tmp_path):
    model = small_model("attention(heads=2)", **LLAMA)
    save_model(tmp_path / "llama", model, tokenizer_json(), {"step": 3})
    return model, tmp_path / "llama"


def failed(capsys, *words):
    """The one line that a command complained with."""
    assert main([*map(str, words)]) == 2
    return complaint(capsys)


def test_describe_adds_up(llama, capsys):
    model, path = llama
    assert main(["describe", str(path), "--context", "7"]) == 0
    said = capsys.readouterr().out
    assert f"{count_parameters(model):,}" in said
    assert "2 x token_mixer" in said
    assert "attention(heads=2)" in said
    assert "at a context of 7" in said
    assert main(["describe", str(path / "config.json")]) == 0


def test_closed_streams_are_no_error(llama, monkeypatch):
    with monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, None)
        assert main(["describe", str(llama[1])]) == 0
        sys.stdout.close()
        sys.stderr.close()


def test_a_console_of_ascii_shows_what_was_written(llama, monkeypatch, tmp_path):
    """There was a traceback, after the model was written."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["export", str(llama[1]), str(tmp_path / "bücher")]) == 0
    sys.stdout.flush()
    assert raw.getvalue().endswith(rb"b\xfccher" + b"\n")


def test_describe_of_what_is_no_model(llama, capsys):
    _, path = llama
    (path / "model.safetensors").write_bytes(b"cut")
    assert "model.safetensors cannot be read: " in failed(capsys, "describe", path)
    (path / "model.safetensors").unlink()
    message = f"{path} is not a model directory: it has no model.safetensors"
    assert message in failed(capsys, "describe", path)
    assert "no such model directory" in failed(capsys, "describe", path / "none")


def test_export_and_import_are_inverse(llama, tmp_path, capsys):
    model, path = llama
    for _ in range(2):  # the second in the place of the first
        assert main(["export", str(path), str(tmp_path / "hf")]) == 0
        assert capsys.readouterr().out == f"wrote {tmp_path / 'hf'}\n"
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "llama"
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "back")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'back'}\n"
    tokens = random_tokens(model)
    assert torch.equal(load_model(tmp_path / "back").model(tokens), model(tokens))


def test_an_import_does_not_replace_its_source(llama, tmp_path, capsys):
    source, linked = tmp_path / "hf", tmp_path / "linked"
    assert main(["export", str(llama[1]), str(source)]) == 0
    linked.symlink_to(source)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    for out in (source, linked):
        assert str(out) in failed(capsys, "import", source, out)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_a_full_disk_is_named_by_the_place_asked_for(llama, monkeypatch, tmp_path, capsys):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    line = failed(capsys, "export", llama[1], tmp_path / "out")
    assert line.startswith(f"error: {tmp_path / 'out'}: No space left on device; free space")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_behind_the_output_is_one_line(llama, monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["describe", str(llama[1])]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), "No space left" in said) == (1, True)


def test_import_of_a_checkpoint_of_maskedmixers(tmp_path, capsys):
    theirs = reference("flat", 11, 12, 8, 2)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    source, out = tmp_path / "model.safetensors", tmp_path / "out"
    assert "--tokenizer is missing" in failed(capsys, "import", source, out)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(9))
    command = ("import", source, out, "--tokenizer", tmp_path / "tokenizer.json")
    assert "has 9 entries, the model has 11" in failed(capsys, *command)
    for broken in ('"version": "9.0"', '"x": NaN'):
        text = tokenizer_json().replace('"version": "1.0"', broken)
        (tmp_path / "tokenizer.json").write_text(text)
        assert "tokenizer.json is not a tokenizer file" in failed(capsys, *command)
    assert not out.exists()
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    assert main([*map(str, command)]) == 0
    loaded = load_model(out)
    assert loaded.config.mixers == ("flat",)
    assert loaded.meta["source"] == "maskedmixers"
    assert main(["import", str(tmp_path), str(tmp_path / "whole")]) == 0  # a directory with both
    assert load_model(tmp_path / "whole").tokenizer_json == loaded.tokenizer_json


def test_the_files_beside_a_tokenizer_say_what_ends_a_text(tmp_path, capsys):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    named = {"eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    theirs = reference("flat", tokenizer.get_vocab_size(), 12, 8, 2)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    flag = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    sizes = ["--set", "n_layers=1", "d_model=8", "context=16"]
    for command, source, small in (
        ("import", [str(tmp_path / "model.safetensors")], []),
        ("init", [], sizes),
    ):
        assert main([command, *source, str(tmp_path / command), *flag, *small]) == 0
        assert load_model(tmp_path / command).meta["end"] == "</s>"
        assert "names <unk>, which tokenizer.json does not" in capsys.readouterr().err


@pytest.fixture
def hub(monkeypatch):
    """Puts a hub in the place of the real one: `hub({"a/b": path})`, or an error for a path."""

    def pretend(models):
        def snapshot_download(name, **patterns):
            if isinstance(models[name], Exception):
                raise models[name]
            return str(models[name])

        package = ModuleType("huggingface_hub")
        vars(package).update(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)

    return pretend


def test_import_from_the_hub(llama, hub, tmp_path, capsys):
    model, path = llama
    main(["export", str(path), str(tmp_path / "hf")])
    proxy = type("ProxyError", (Exception,), {})  # of the HTTP library, whichever it is
    part = OSError("offline")
    part.snapshot_path = str(tmp_path / "hf")  # pyright: ignore
    errors = {"me/part": part, "me/none": proxy("404: no me/none\nmore"), "me/far": proxy()}
    (tmp_path / "pickles").mkdir()
    shutil.copy(tmp_path / "hf" / "config.json", tmp_path / "pickles")
    (tmp_path / "packed").mkdir()  # of a repository of GGUF files, which are not downloaded
    places = {f"me/{name}": tmp_path / name for name in ("pickles", "packed")}
    places |= {"me/ours": path, "me/llama": tmp_path / "hf"}
    hub(places | errors)
    tokens = random_tokens(model)
    for name in ("ours", "llama", "part"):
        assert main(["import", f"hub:me/{name}", str(tmp_path / "new" / name)]) == 0
        loaded = load_model(tmp_path / "new" / name)
        assert loaded.meta["name"] == name
        assert torch.equal(loaded.model(tokens), model(tokens))
    assert "hub:me/part: offline" in capsys.readouterr().err
    for name in ("pickles", "packed"):
        line = failed(capsys, "import", f"hub:me/{name}", tmp_path / "none")
        assert line.startswith(f"error: hub:me/{name}: no *.safetensors")
        assert "FILE.gguf" in line
    for name, said in (("none", "404: no me/none more"), ("far", "ProxyError")):
        line = failed(capsys, "import", f"hub:me/{name}", tmp_path / "none")
        assert line == f"error: hub:me/{name} cannot be had: {said}"


def test_import_of_what_is_not_there(tmp_path, capsys):
    line = failed(capsys, "import", tmp_path / "none", tmp_path / "out")
    assert line.endswith("no such file or directory; models of the hub are hub:NAME")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").symlink_to("none")
    assert "config.json is a link to none" in failed(capsys, "import", tmp_path / "m", "out")


def test_init_writes_an_untrained_model_of_any_size(tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    recipe = tmp_path / "recipe.yaml"
    mixers = "attention(heads=2, bias=true)"  # which YAML splits at the comma
    recipe.write_text(f"seed: 3\nmodel:\n  vocab_size: 96\n  d_model: 16\n  mixers: [{mixers}]\n")
    words = ["--tokenizer", tmp_path / "tokenizer.json", "--config", recipe]
    sizes = ["--set", "n_layers=3", "context=24", "mixers=[attention(heads=2)+flat]"]

    def drawn(name, *more):
        assert main(["init", str(tmp_path / name), *map(str, words), *sizes, *more]) == 0
        return load_model(tmp_path / name)

    first, again, other = drawn("a"), drawn("b"), drawn("c", "--seed", "1")
    alike = drawn("d", "--config", str(first.path / "config.json"), "--set", "norm_eps=1e-05")
    assert alike.config == first.config  # 1e-05 is a number
    config = first.config
    assert (config.d_model, config.n_layers, config.context) == (16, 3, 24)
    assert config.mixers == ("attention(heads=2)+flat",)
    config = drawn("e", "--set", "d_model=8").config  # beside the others
    assert (config.d_model, config.n_layers, config.context) == (8, 3, 24)
    sizes = []
    assert drawn("f", "--set", "n_layers=1").config.mixers == (mixers,)
    assert first.meta["step"] == 0
    tokens = random_tokens(first.model)
    assert torch.equal(first.model(tokens), again.model(tokens))
    assert not torch.equal(first.model(tokens), other.model(tokens))
    for flags, message in [
        (["--set", "d_model"], "--set d_model: must be NAME=VALUE"),
        (["--set", "width=3"], "unknown fields: width"),
        (["--set", "vocab_size=3"], "--set vocab_size=3: the vocabulary is that of --tokenizer"),
        (["--tokenizer", tmp_path / "none.json"], "none.json: no such file"),
        (["--set", "mixers=[flat"], "--set mixers"),
        (["--set", "mixers=&a [*a]"], "--set mixers"),
        (["--set", "norm=2001-01-01"], "norm is '2001-01-01'"),
        (["--set", "norm=2001-13-45"], "--set norm"),
        (["--set", "d_model=0x_"], "--set d_model"),
        (["--seed", "20000000000000000000"], "--seed 20000000000000000000: allowed: 0 to "),
        (["--config", tmp_path / "none.yaml"], "none.yaml"),
        (["--config", tmp_path / "tokenizer.json"], "unknown fields"),
        (["--tokenizer", recipe], f"{recipe} is not a tokenizer file"),
    ]:
        assert message in failed(capsys, "init", tmp_path / "no", *words, *flags)
        assert not (tmp_path / "no").exists()
    assert "holds a model already" in failed(capsys, "init", first.path, *words)
    assert torch.equal(load_model(first.path).model(tokens), first.model(tokens))


def test_check_takes_a_model_of_the_repository_by_its_name(capsys):
    first = shipped_models()[0].name
    assert f"allowed: remnant:{first}" in failed(capsys, "check", "remnant:none")


def test_what_the_parser_refuses_is_one_line(capsys):
    empty = (["describe", ""], ["init", "", "--tokenizer", "t"], ["init", "a", "--tokenizer="])
    for words in (["init"], ["export", "a", "b", "--layout", "c"], *empty):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        said = capsys.readouterr().err
        assert (said.count("\n"), said[:7]) == (1, "error: ")
