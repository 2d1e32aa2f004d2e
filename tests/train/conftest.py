"""Data and a finished run that the tests of training share: once for each process of tests."""

import shutil
from functools import cache
from importlib.metadata import entry_points

import pytest
import torch

from arch import LanguageModel, check_causal, describe
from tests.train.cases import fit, pack_toy
from tests.train.recorded import pack_both
from train.steps.module import LanguageModule


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Threads that wait for each other on a busy machine made minutes of seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _installed_callbacks_are_found_once():
    """Every trainer looks through the metadata of all packages for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning.fabric.utilities.registry.entry_points", cache(entry_points))
        yield


@pytest.fixture(autouse=True, scope="session")
def _counted_once():
    """The work of a model is counted once for all runs of its configuration."""
    with pytest.MonkeyPatch.context() as patch:
        counted = cache(describe)
        for module in ("train.run", "train.commands.plan"):
            patch.setattr(f"{module}.describe", counted)
        yield


@pytest.fixture(autouse=True, scope="session")
def _checked_once():
    """A model of our own mixers is refused or not by its configuration: one of them is checked."""

    @cache
    def check(config):
        check_causal(LanguageModel(config))

    def check_once(model):
        others = any("." in name for name in model.config.mixers)
        check_causal(model) if others else check(model.config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.run.check_causal", check_once)
        yield


@pytest.fixture(scope="session")
def packed(small_tokenizer, tmp_path_factory):
    """Four stories."""
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 4)


@pytest.fixture(scope="session")
def data(packed):
    return packed.path


@pytest.fixture(scope="session")
def stories(small_tokenizer, tmp_path_factory):
    """Forty stories."""
    return pack_toy(small_tokenizer, tmp_path_factory.mktemp("toy") / "packed", 40)


@pytest.fixture(scope="session")
def places(small_tokenizer, tmp_path_factory):
    """The data of the recipes whose losses are on record, by their names."""
    return pack_both(small_tokenizer, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def whole(data, tmp_path_factory):
    """A run of six steps that nothing interrupted, all of them saved; not to be changed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert fit(data, run, "--checkpoint_every", "2", "--save_every", "1") == 0
    return run


@pytest.fixture
def finished(data, whole, tmp_path):
    """Copies of a finished run, to go on from: `finished("a")`."""
    return lambda name="run": shutil.copytree(whole, tmp_path / name)


@pytest.fixture
def refused(capsys):
    """The one line of an error, of a command that ended with exit code 2 and said nothing else."""

    def line(code):
        assert code == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return line


@pytest.fixture
def at_step(monkeypatch):
    """Does something with a step's loss when it is computed: `at_step(7, lambda loss: ...)`."""
    original = LanguageModule.training_step

    def patch(step, act):
        def training_step(self, batch, batch_idx):
            loss = original(self, batch, batch_idx)
            first = batch_idx % self.trainer.accumulate_grad_batches == 0
            return act(loss) if first and self.trainer.global_step == step - 1 else loss

        monkeypatch.setattr(LanguageModule, "training_step", training_step)

    return patch
