"""Models in and out: `python -m arch describe | check | init | import | export`."""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # The working directory may have folders or files of our names, or a library's: it comes last.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.append(sys.path.pop(0))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.modules.pop("arch", None)

import yaml

import arch.kernels.process  # before torch
from arch.check import check_promises
from arch.config import ModelConfig
from arch.costs import describe
from arch.errors import ModelError, is_out_of_memory, printable, reason
from arch.formats.checkpoints import import_reference
from arch.formats.foreign import refuse_dangling
from arch.formats.hub.card import download, push_directory
from arch.formats.hub.export import export_hub
from arch.formats.llama import check_importable, export_transformers, open_directory
from arch.formats.named_tokens import say_left_out_tokens
from arch.formats.structured import HELD
from arch.mixers import refuse_foreign
from arch.model import LanguageModel
from arch.pretrained.gguf.reader import GGUF
from arch.pretrained.pretrained import import_gguf, load_pretrained
from arch.pretrained.tokenizers import read_ends_of_text, read_tokenizer
from arch.storage.directory import (
    LoadedModel,
    check_model,
    check_vocabulary,
    load_model,
    read_config,
    save_model,
    vocabulary_size,
)
from arch.storage.files import read_text
from arch.storage.runs import HUB, PRETRAINED, SHIPPED
from arch.storage.values import YamlLoader

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a place that has no room."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code."""
    arch.kernels.process.prepare_streams()
    options = _parser().parse_args(words)
    out: Path | None = getattr(options, "out", None)
    try:
        if out and (out / "meta.json").exists():
            raise ModelError(f"{out}: holds a model already; remove it, or choose another")
        options.run(options)
    except BrokenPipeError:
        arch.kernels.process.discard_output(sys.stdout)
    except (ModelError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError) and error.errno in FULL and out:  # while it was written
            said = f"{out}: {error.strerror}; free space, or choose another place"
        elif isinstance(error, OSError) and error.filename:
            said = f"{error.filename}: {error.strerror}"
        print(f"error: {printable(said)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing is half-written", file=sys.stderr)
        return 130
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print("error: out of memory; free some, or take a smaller model", file=sys.stderr)
        return 2
    return 0


class Parser(argparse.ArgumentParser):
    """Reports what it cannot parse in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends with code 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _given(word: str) -> str:
    """A word; an empty one is refused, which as a path would be the working directory."""
    if not word:
        raise argparse.ArgumentTypeError("the value is empty; give one")
    return word


def _path(word: str) -> Path:
    return Path(_given(word))


OUT = "the model directory to write"


def _parser() -> Parser:
    parser = Parser(prog="python -m arch", description="Describes, imports and exports models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], about: str) -> Callable:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        trust = "let a model directory name mixers outside this project, whose code runs"
        made.add_argument("--trust_code", "--trust-code", action="store_true", help=trust)
        return made.add_argument

    about = "print a model as a table: parts, shapes, parameters, FLOPs per token"
    add = command("describe", _describe, about)
    described = "a model directory, a run, RUN@STEP, or a config.json"
    add("model", metavar="DIR", type=_given, help=described)
    add("--context", type=int, metavar="T", help="tokens of a sequence, for the FLOPs")

    add = command("init", _init, "write an untrained model of any size, drawn from a seed")
    add("out", metavar="OUT", type=_path, help=OUT)
    add("--tokenizer", metavar="FILE", type=_path, required=True, help="a tokenizer.json")
    config = (
        "a config.json, or a training recipe (YAML), of which the section model is read; default: "
        "512 wide, 8 blocks, context 512, flat mixers"
    )
    add("--config", metavar="FILE", type=_path, help=config)
    fields = "fields of the configuration, as in d_model=1024 'mixers=[parallel(branches=2)]'"
    add(
        "--set",
        metavar="NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        dest="fields",
        help=fields,
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the initial weights (0)")

    about = "check what a model or a mixer promises: causality, prefix and step, gradients"
    add = command("check", _check, about)
    checked = (
        "a model directory, or remnant:NAME; a mixer's entry, such as module.Class, of which a "
        "small model is made; or hf: and a model of transformers"
    )
    add("model", metavar="MODEL", type=_given, help=checked)
    _add_exchange(command)
    return parser


def _add_exchange(command: Callable[..., Callable]) -> None:
    """Adds `import` and `export`."""
    about = "make a model directory from a model of another project or of the hub"
    add = command("import", _import, about)
    sources = (
        "a Llama in the layout of transformers or in a .gguf file, an export for the hub, or a "
        "checkpoint of maskedmixers or of structured mixers; hub:NAME downloads a directory whose "
        "weights are safetensors (of a repository of GGUF files, download the file yourself)"
    )
    add("source", metavar="SOURCE", type=_given, help=sources)
    add("out", metavar="DIR", type=_path, help=OUT)
    add(
        "--tokenizer",
        metavar="FILE",
        type=_path,
        help="a tokenizer.json, for a checkpoint of mixers whose directory holds none",
    )
    held = (
        "the mixer of a checkpoint of structured mixers (mrm, ToeplitzMixers), which does not name "
        "it"
    )
    add("--mixer", choices=HELD, help=held)

    add = command("export", _export, "write a model in a layout that transformers reads")
    exported = "a model directory, a run, RUN@STEP or RUN@best"
    add("model", metavar="DIR", type=_given, help=exported)
    add("out", metavar="OUT", type=_path, help="the directory to write")
    layout = (
        "transformers (default): that of transformers, for a Llama-style model; hub: any built-in "
        "mixer, with the model's code and a model card, to be loaded with trust_remote_code=True"
    )
    add("--layout", choices=("transformers", "hub"), default="transformers", help=layout)
    add("--license", metavar="NAME", help="for the model card, by the hub's name, as mit")
    tables = "for the model card: tables that `eval summary --markdown FILE` wrote of its rows"
    add("--recovered", metavar="FILE", type=_path, help=tables)
    pushed = "upload OUT to this repository with huggingface_hub; a new repository is private"
    add("--push", metavar="OWNER/NAME", type=_given, help=pushed)


def _describe(options: argparse.Namespace) -> None:
    path = Path(options.model)
    weights = path.suffix.lower() in (GGUF, ".safetensors")
    read = read_config if path.is_file() and not weights else check_model
    config = read(path, trust_code=options.trust_code)
    try:
        parts, cost, length = describe(config, options.context)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    alike: dict[tuple, list[str]] = {}  # the same part of several blocks stands on one line
    for name, kind, shapes, work in parts:
        listed = ", ".join(
            f"{tensor.removesuffix('.weight')} {'x'.join(map(str, shape))}"
            for tensor, shape in shapes.items()
        )
        alike.setdefault((name.split(".")[-1], kind, listed, work), []).append(name)
    rows = [("part", "kind", "shapes", "parameters", "FLOPs/token")]
    for (name, kind, listed, work), (first, *more) in alike.items():
        count = 1 + len(more)
        figures = f"{count * work.parameters:,}", f"{count * work.flops:,}"
        rows.append((f"{count} x {name}" if more else first, kind, listed, *figures))
    rows.append(("all", "", "", f"{cost.parameters:,}", f"{cost.flops:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        aligned = [f"{cell:{'<' if i < 3 else '>'}{widths[i]}}" for i, cell in enumerate(row)]
        print("  ".join(aligned))
    print(f"\ntraining: {cost.training_flops:,} FLOPs per token at a context of {length}")


def _init(options: argparse.Namespace) -> None:
    import torch

    if not 0 <= options.seed < 2**64:
        raise ModelError(f"--seed {options.seed}: allowed: 0 to {2**64 - 1}")
    if not options.tokenizer.is_file():
        raise ModelError(f"--tokenizer {options.tokenizer}: no such file; give a tokenizer.json")
    tokenizer_json, ends = _read_tokenizer(options.tokenizer)
    fields = _read_fields(options.config) if options.config else {}
    given: dict[str, Any] = {}
    for text in options.fields:
        name, equals, value = text.partition("=")
        if not equals:
            raise ModelError(f"--set {text}: must be NAME=VALUE, as in d_model=1024")
        if name == "vocab_size":
            raise ModelError(f"--set {text}: the vocabulary is that of --tokenizer; leave it out")
        given[name] = _read_yaml(value, f"--set {name}")
    fields |= given | {"vocab_size": vocabulary_size(options.tokenizer, tokenizer_json)}
    config = ModelConfig.from_json(json.dumps(fields), str(options.config or "--set"))
    if options.config and "mixers" not in given:
        source = f"--config {options.config}"
        refuse_foreign(config.mixers, options.config.parent, options.trust_code, source)
    torch.manual_seed(options.seed)
    meta = {"step": 0, "tokens_seen": 0, "seed": options.seed, **ends}
    print(f"wrote {save_model(options.out, LanguageModel(config), tokenizer_json, meta)}")


def _read_tokenizer(file: Path) -> tuple[str, dict[str, Any]]:
    """A tokenizer.json, and what begins and ends a text, as the files beside it name it."""
    text = read_text(file)
    ends = read_ends_of_text(file.parent, read_tokenizer(text, file))
    say_left_out_tokens(file.parent, text)
    return text, ends


def _read_fields(path: Path) -> dict[str, Any]:
    """The fields of a `ModelConfig` in a config.json, or in the section `model` of a recipe."""
    data = _read_yaml(read_text(path), f"--config {path}")  # JSON, too
    fields = data.get("model", data) if isinstance(data, dict) else data
    if not isinstance(fields, dict):
        raise ModelError(f"--config {path}: has no fields; give a config.json or a recipe")
    return dict(fields)


def _read_yaml(text: str, name: str) -> Any:
    """Values as JSON has them; a date is a text."""
    try:
        return json.loads(json.dumps(yaml.load(text, YamlLoader), default=str))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelError(f"{name}: {reason(error, 300)}") from None


def _check(options: argparse.Namespace) -> None:
    import torch

    name, path = options.model, Path(options.model)
    is_path = "/" in name or "@" in name or path.is_dir() or (path.suffix and path.is_file())
    if name.startswith(PRETRAINED):
        loaded = load_pretrained(name.removeprefix(PRETRAINED))
        model, tokenizer_json = loaded.model, loaded.tokenizer_json
    elif name.startswith(SHIPPED) or is_path:
        loaded = load_model(name, trust_code=options.trust_code)
        model, tokenizer_json = loaded.model, loaded.tokenizer_json
    else:
        torch.manual_seed(0)
        model = LanguageModel(ModelConfig(64, 256, 64, 2, mixers=(name,))).eval()
        vocabulary = {str(token): token for token in range(model.config.vocab_size)}
        tokenizer_json = json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}})
    for what, figure in check_promises(model, tokenizer_json):
        print(f"{what:16}{figure}", flush=True)


def _import(options: argparse.Namespace) -> None:
    source = options.source
    path = download(source, check_importable) if source.startswith(HUB) else Path(source)
    name = Path(os.path.abspath(source.removeprefix(HUB))).name
    if not path.exists():
        raise ModelError(f"{source}: no such file or directory; models of the hub are {HUB}NAME")
    if options.out.resolve() == path.resolve():
        raise ModelError(f"{options.out}: is the source itself; give another place to write")
    tokenizer = options.tokenizer or path / "tokenizer.json"
    has_its_own = path.suffix.lower() == GGUF or (path / "config.json").is_file()
    for flag in "tokenizer", "mixer":
        if has_its_own and (given := getattr(options, flag)):
            raise ModelError(f"--{flag} {given}: {path} says that itself; leave it out")
    if path.suffix.lower() == GGUF:
        loaded, name = import_gguf(path), path.stem
    elif (path / "config.json").is_file():
        loaded = open_directory(path, trust_code=options.trust_code)
    elif options.tokenizer is None and not tokenizer.is_file():
        refuse_dangling(path)
        for file in path.iterdir() if path.is_dir() else ():
            if file.suffix.lower() == GGUF:
                raise ModelError(f"{path}: has no config.json; give the file {file}")
        raise ModelError(f"--tokenizer is missing: {path} has none; give its tokenizer.json")
    else:
        model = import_reference(path, options.mixer)
        tokenizer_json, ends = _read_tokenizer(tokenizer)
        check_vocabulary(tokenizer, tokenizer_json, model.config.vocab_size)
        meta = {"source": "structured mixers" if options.mixer else "maskedmixers", **ends}
        loaded, name = LoadedModel(model, model.config, tokenizer_json, meta, path), path.stem
    read_tokenizer(loaded.tokenizer_json, tokenizer)
    save_model(options.out, loaded.model, loaded.tokenizer_json, {**loaded.meta, "name": name})
    if any("decay=published" in entry for entry in loaded.config.mixers):
        print("c of the decay is not in the file; taken as context // 512, or // 256 with taps")
    print(f"wrote {options.out}")


def _export(options: argparse.Namespace) -> None:
    for name in "license", "recovered":
        if (given := getattr(options, name)) and options.layout != "hub":
            raise ModelError(f"--{name} {given}: goes with --layout hub, which has a card")
    recovered = read_text(options.recovered) if options.recovered else None
    loaded = load_model(options.model, trust_code=options.trust_code)
    if options.layout == "hub":
        export_hub(options.out, loaded.model, loaded.tokenizer_json, loaded.meta,
                   address=options.push, license=options.license,
                   recovered=recovered)  # fmt: skip
    else:
        export_transformers(options.out, loaded.model, loaded.tokenizer_json, loaded.meta)
    print(f"wrote {options.out}")
    if options.push:
        print(f"uploaded {push_directory(options.out, options.push)}")


if __name__ == "__main__":
    sys.exit(main())
