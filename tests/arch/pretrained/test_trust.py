"""Code that a model directory names runs when it is trusted, and never from the directory."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from arch import LanguageModel, ModelConfig, ModelError, check_model, load_model, save_model
from tests.arch.cases import byte_tokenizer

MIXER = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from arch.mixers.masked import Flat
class Mix(Flat):
    pass
"""
NAMES = {  # where the file is, and how the configuration names it
    "in the directory": ("model/mix.py", "model.mix.Mix"),
    "a package in the directory": ("model/inner/__init__.py", "model.inner.Mix"),
    "below the directory": ("model/a/b/mix.py", "model.a.b.mix.Mix"),
    "beside it": ("beside_it.py", "beside_it.Mix"),
    "of the standard library": (None, "idlelib.idle.Mix"),
    "of ours": (None, "arch.mixers.masked.Flat"),
}
INSIDE = [name for name, (file, _) in NAMES.items() if file and file.startswith("model/")]


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Makes a model directory whose mixer is of somebody else; the file that its code writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)

    def make(where):
        file, name = NAMES[where]
        marker = tmp_path / "marker"
        tokenizer = byte_tokenizer()
        config = ModelConfig(tokenizer.get_vocab_size(), 16, 8, 1, mixers=("flat",))
        save_model("model", LanguageModel(config), tokenizer.to_str(), {"name": "m", "step": 0})
        if file:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(MIXER.format(marker=str(marker)))
        path = Path("model", "config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mixers": [name]}))
        return marker

    yield make
    for module in set(sys.modules) - known:
        if module.partition(".")[0] in ("model", "beside_it", "linked"):
            del sys.modules[module]


ASKED = [
    "arch describe model",
    "arch describe model/config.json",
    "arch check ./model",
    "arch init out --tokenizer model/tokenizer.json --config model/config.json",
    "arch export model out",
    "eval loss model --text a",
    "eval invert model --text abc --solvers chance",
    "eval lens model --lens logit --text abc",
    "eval bits model --text abc",
    "eval recover captured.safetensors --model model",
    "eval compare model",
    "eval generate model --prompt a",
    "eval explore model --port 0",
]


@pytest.mark.parametrize(
    ("words", "where"),
    [(words, [*NAMES][(i + j) % 6]) for i, words in enumerate(ASKED) for j in (0, 3)],
)
def test_code_is_not_run_unasked(where, words, named, capsys):
    """Each command is asked of code in two places, each place of four commands."""
    marker = named(where)
    save_file({"block.1": torch.zeros(2, 8)}, "captured.safetensors")
    room, *given = words.split()
    assert import_module(f"{room}.__main__").main(given) == 2
    said = capsys.readouterr()
    line = said.err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert NAMES[where][1] in line
    assert "--trust_code" in line
    assert said.out == ""
    assert not marker.exists()


@pytest.mark.parametrize("where", NAMES)
def test_a_training_starts_from_no_code(where, named, tmp_path):
    from train.steps.initial import start_from_weights

    marker = named(where)
    model = LanguageModel(ModelConfig(259, 16, 8, 1, mixers=("flat",)))
    with pytest.raises(ModelError, match="trust_code"):
        start_from_weights(model, "model", "{}")
    assert not marker.exists()


@pytest.mark.parametrize("where", INSIDE)
def test_code_of_the_directory_is_never_run(where, named):
    marker = named(where)
    for read in (load_model, check_model):
        with pytest.raises(ModelError, match="never run"):
            read("model", trust_code=True)
    assert not marker.exists()


def test_a_link_into_the_directory_is_the_directory(named, tmp_path):
    marker = named("in the directory")
    (tmp_path / "linked").symlink_to(tmp_path / "model")
    path = Path("model", "config.json")
    path.write_text(path.read_text().replace("model.mix.Mix", "linked.mix.Mix"))
    with pytest.raises(ModelError, match="never run"):
        load_model("model", trust_code=True)
    shutil.move("model", "moved")
    assert not marker.exists()


def test_a_name_in_one_text_is_code_too(named, capsys):
    marker, path = named("beside it"), Path("model", "config.json")
    path.write_text(path.read_text().replace('["beside_it.Mix"]', '"beside_it.Mix"'))
    words = ASKED[[word.startswith("arch init") for word in ASKED].index(True)].split()
    assert import_module("arch.__main__").main(words[1:]) == 2
    assert "beside_it.Mix" in capsys.readouterr().err
    assert not marker.exists()


def test_code_that_is_trusted_runs(named, capsys):
    marker = named("beside it")
    assert load_model("model", trust_code=True).model.config.mixers == ("beside_it.Mix",)
    assert marker.exists()
    for words in ("arch describe model --trust_code", "eval loss model --text ab --trust-code",
                  "eval loss model --text ab --trust_code"):  # fmt: skip
        room, *given = words.split()
        assert import_module(f"{room}.__main__").main(given) == 0
