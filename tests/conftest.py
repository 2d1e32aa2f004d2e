"""What many tests stand on: a small tokenizer, small models, their directories.

The tests of `scripts/gpu_check.sh` run where only torch, triton, numpy and pytest are installed, so
that this file imports the rest where it is used.
"""

import arch.kernels.process  # noqa: F401 - before torch, as in every command

# isort: split
import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from arch import LanguageModel

VOCAB = 400

try:
    from hypothesis import settings
except ImportError:
    pass
else:  # a busy machine is no fault
    settings.register_profile("remnant", deadline=None)
    settings.load_profile("remnant")
os.environ.setdefault("WANDB__SERVICE_WAIT", "300")  # seconds until its process is up
for name in ("WANDB_MODE", "WANDB_PROJECT"):  # defaults of ours
    os.environ.pop(name, None)


LONGEST = ("test_docs.py", "train/steps/test_speed.py")
"""Files whose tests stand first, so that none of them ends long after the others.

Pages of the docs go on from others, which one process runs once.
"""


def pytest_collection_modifyitems(items):
    """Makes the cases after the first so many slow, where a test says so; orders what is left.

    The longest tests stand first, and before them those that fork processes from one, which takes
    seconds to import everything: all of them stand together, in one worker.
    """
    seen = Counter()
    for item in items:
        if (mark := item.get_closest_marker("first")) is not None:
            seen[item.function] += 1
            if seen[item.function] > mark.args[0]:
                item.add_marker("slow")
    items.sort(
        key=lambda item: (
            "forked" not in getattr(item, "fixturenames", ()),
            not any(name in item.nodeid for name in LONGEST),
        )
    )


def pytest_collection_finish():
    """What stands now stays to the end: no collection of garbage need look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _deterministic() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _absent_devices_are_not_seeded() -> Iterator[None]:
    """torch would note the stack of every such call, milliseconds, for the day a device is used."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What a test writes need not outlive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def small_tokenizer() -> "Tokenizer":
    """A real byte-level BPE, of 400 entries."""
    from tokenizer import open_corpus, train_tokenizer

    return train_tokenizer(open_corpus("toy:60", "train"), vocab_size=VOCAB)


@pytest.fixture(scope="session")
def small_model() -> "Callable[..., LanguageModel]":
    """Makes untrained models that a test can afford: `small_model(mixers=("attention",))`."""
    from arch import LanguageModel, ModelConfig

    def make(**settings: object) -> LanguageModel:
        chosen = {"context": 32, "d_model": 32, "n_layers": 2, "embedding_std": 1.0} | settings
        torch.manual_seed(1)
        config = ModelConfig(**{"vocab_size": VOCAB} | chosen)  # pyright: ignore[reportArgumentType]
        return LanguageModel(config).eval().requires_grad_(False)

    return make


@pytest.fixture
def model_directory(
    tmp_path: Path, small_model: "Callable[..., LanguageModel]", small_tokenizer: "Tokenizer"
) -> Callable[..., Path]:
    """Saves a small model: `model_directory("flat", step=10)` gives its path."""
    from arch import save_model

    def make(name: str = "flat", step: int = 0, **settings: object) -> Path:
        return save_model(
            tmp_path / name / f"step-{step:06d}",
            small_model(**settings),
            small_tokenizer.to_str(),
            {"name": name, "step": step},
        )

    return make


@pytest.fixture(scope="session")
def forked():
    """Starts processes from one that has imported everything, which takes it seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.forked"])
    return context


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, one for the tests of a file; they are skipped where there is none.

    Playwright can be started once at a time.
    """
    from playwright.sync_api import sync_playwright

    from tests.browser_cases import NONE, launch

    with sync_playwright() as playwright:
        started = launch(playwright)
        if started is None:
            pytest.skip(NONE)
        yield started[0]
        started[0].close()
