"""The model card of an export, its upload to the hub, and models downloaded from there."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from arch.config import ModelConfig
from arch.errors import ModelError, reason, say

_FILES = ["*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt"]
_OTHERS = ["*/*", "consolidated*"]
"""What is downloaded, and what of it is not: the same weights in layouts that are not read."""
USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{address}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{address}", trust_remote_code=True)
```"""
LIMITS = """\
The model keeps no cache: generation runs the whole text at each step. It refuses texts of more than
{context} tokens, and padding before a text."""


def write_card(
    config: ModelConfig,
    parameters: int,
    meta: dict[str, Any],
    address: str,
    license: str | None,
    recovered: str | None = None,
) -> str:
    """The text of a model card; what is not known of the model is left out.

    Args:
        meta: its provenance, as meta.json holds it.
        address: where users find it: a repository of the hub, or the directory's name.
        license: a licence by the hub's name, as `mit`.
        recovered: Markdown on the input tokens that its layers give back.
    """
    from huggingface_hub import EvalResult, ModelCardData

    source = str(meta.get("data_source") or meta.get("data") or "")
    dataset = source.removeprefix("hub:").split(":")[0] if source.startswith("hub:") else None
    data = dataset or Path(source).name
    bits, loss, tokens = (meta.get(n) for n in ("val_bits_per_byte", "val_loss", "tokens_seen"))
    results = []
    if bits is not None:
        named: Any = {"dataset_type": dataset or "text", "dataset_name": data or "held-out text"}
        results = [EvalResult(task_type="text-generation", metric_type="bits_per_byte",
                              metric_value=bits, **named)]  # fmt: skip
    name = str(meta.get("name") or address)
    front = ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["remnant"],
        datasets=[dataset] if dataset else None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    facts = {
        "token mixers": f"`{', '.join(config.mixers)}`",
        "parameters": f"{parameters:,}",
        "context": f"{config.context:,} tokens",
        "training data": data,
        "tokens seen in training": None if tokens is None else f"{tokens:,}",
        "held-out loss, nats/token": None if loss is None else f"{loss:.4f}",
        "held-out loss, bits/byte": None if bits is None else f"{bits:.4f}",
        "licence": license,
    }
    table = [f"| {name} | {fact} |" for name, fact in facts.items() if fact]
    text = [
        f"---\n{front.to_yaml()}\n---",
        f"# {name}",
        "A causal language model of remnant. Its code stands in this directory and needs torch and "
        "transformers 5 alone.",
        USE.format(address=address),
        "\n".join(["| | |", "|---|---|", *table]),
        LIMITS.format(context=config.context),
    ]
    if recovered:
        text += ["## Input tokens recovered from its layers", recovered.strip()]
    return "\n\n".join(text) + "\n"


def push_directory(directory: Path, repo: str) -> str:
    """Uploads a directory to a repository of the hub, its address.

    A repository that is not there is made, a private one.

    Raises:
        ModelError: no network, no login, no right to write there, or no name of a repository.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=directory, commit_message="Export of remnant")
    except Exception as error:  # of the hub, of files, or of the HTTP library, one by version
        raise ModelError(
            f"--push {repo}: not uploaded ({reason(error)}); {directory} is written; fix: hf auth "
            "login, and give OWNER/NAME"
        ) from None
    return f"https://huggingface.co/{repo}"


def download(source: str, check: Callable[[Path], object]) -> Path:
    """Where a model of the hub lies, after its download; `source` is `hub:NAME` or `hf:NAME`.

    `check` sees its JSON files, a config.json among them, before its weights are fetched.

    Raises:
        ModelError: no network, no such model, or as `check`.
    """
    path = _fetch(source, _FILES[:1])
    if (path / "config.json").is_file():
        with redirect_stderr(io.StringIO()):  # what it says is said when the whole is read
            check(path)
    path = _fetch(source, _FILES)
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f"{source}: no *.safetensors was found on the hub or, offline, in its cache; a pickle "
            "such as pytorch_model.bin could run code when it is read: convert it by "
            "save_pretrained, and give the directory; of GGUF files download one, and give "
            "hf:FILE.gguf (to arch import: FILE.gguf)"
        )
    return path


def _fetch(source: str, files: list[str]) -> Path:
    """Where a model of the hub lies, after the download of its files of these names.

    Offline that is its copy in the cache. Where files are known to be missing there, which may be
    those that name tokens, a line on stderr says so of the whole model.
    """
    from huggingface_hub import snapshot_download

    try:
        name = source.partition(":")[2]
        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=_OTHERS))
    except Exception as error:  # of the hub, of files, or of the HTTP library, one by version
        if held := getattr(error, "snapshot_path", None):  # offline, a part of it
            if files is _FILES:
                say(f"{source}: {reason(error, 400)}")
            return Path(held)
        raise ModelError(f"{source} cannot be had: {reason(error)}") from None
