"""A fuzz of every door: `python -m scripts.fuzz --minutes 10`.

A door is a kind of file, or a request, that comes from outside. Mutants of a valid one go through
the command that reads it. Each must end in an answer, or in one line on stderr with exit code 2:
no traceback, no hang over 5 s, and no memory beyond 3 times the file and what the valid one takes.
Mutant N of a door is the same at every call. What fails is kept in --keep, with its outcome.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from scripts.mutants import MUTATORS

SECONDS = 5  # of one mutant
SPARE = 128 << 20  # bytes of memory that a library may take for itself
ROOM = 3 << 30  # bytes of address space beyond what a process has when it begins
LINE = 1000  # letters of a refusal, at most


@dataclass(frozen=True)
class Door:
    """A file that is mutated, and the command that reads it.

    Attributes:
        file: below a copy of the folder `base`.
        mutator: of `MUTATORS`.
        words: of the command, the room first; `{}` is the folder.
    """

    base: str
    file: str
    mutator: str
    words: str


LOSS = "eval loss {}/model --text Tom~ran. --batch_size 1"
HF_LOSS = "eval loss hf:{} --text Tom~ran."
RECOVER = "eval recover {}/FILE --model MODEL --corpus toy:60 --layer 1 --part block"
CORPUS = "tokenizer train {}/FILE --vocab-size 262 --out {}/new.json"
FIT = "train fit --config {}/r.yaml --data {}/none --run {}/run"
DOORS = {
    "weights": Door("own", "model/model.safetensors", "safetensors", LOSS),
    "config": Door("own", "model/config.json", "json", LOSS),
    "describe": Door("own", "model/config.json", "json", "arch describe {}/model"),
    "meta": Door("own", "model/meta.json", "json", LOSS),
    "tokenizer": Door("own", "model/tokenizer.json", "json", LOSS),
    "hf config": Door("hf", "config.json", "json", HF_LOSS),
    "hf tokenizer": Door("hf", "tokenizer.json", "json", HF_LOSS),
    "hf tokenizer settings": Door("hf", "tokenizer_config.json", "json", HF_LOSS),
    "hf weights": Door("hf", "model.safetensors", "safetensors", HF_LOSS),
    "import": Door("hf", "config.json", "json", "arch import {} {}/new"),
    "gguf": Door("gguf", "model.gguf", "bytes", "eval loss hf:{}/model.gguf --text Tom~ran."),
    "capture": Door("captured", "c.safetensors", "safetensors", RECOVER),
    "npy": Door("captured", "c.npy", "npy", RECOVER),
    "npz": Door("captured", "c.npz", "bytes", RECOVER),
    "rows": Door("rows", "rows.jsonl", "lines", "eval summary {}"),
    "rows on a page": Door("rows", "rows.jsonl", "lines", "eval report {} --out {}/page.html"),
    "rows compared": Door("rows", "rows.jsonl", "lines", "eval compare {}"),
    "packed meta": Door("packed", "meta.json", "json", "eval loss MODEL --corpus {}"),
    "shard": Door("packed", "valid-00000.bin", "bytes", "eval loss MODEL --corpus {}"),
    "recipe": Door("recipe", "r.yaml", "yaml", FIT),
    "suite": Door("recipe", "suite.yaml", "yaml",
                  "eval invert MODEL --corpus toy:60 --suite {}/suite.yaml --shard 9999/9999"),
    "jsonl": Door("text", "stories.jsonl", "lines", CORPUS),
    "txt": Door("text", "stories.txt", "text", CORPUS),
    "parquet": Door("text", "stories.parquet", "bytes", CORPUS),
    "csv": Door("text", "stories.csv", "text", CORPUS),
    "explorer look": Door("request", "look.http", "request", "request"),
    "explorer ask": Door("request", "ask.http", "request", "request"),
}  # fmt: skip


class Hang(BaseException):
    """A mutant has taken `SECONDS`."""


def make_bases(place: Path) -> None:
    """Makes the valid files in a folder, about 1 MB: models, captured outputs, rows, stories."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from arch import LanguageModel, ModelConfig, save_model
    from arch.formats.llama import export_transformers
    from tokenizer import open_corpus, pack, train_tokenizer

    tokenizer = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=300).to_str()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 300, "context": 32, "d_model": 16, "n_layers": 2}
    flat = LanguageModel(ModelConfig(**sizes, mixers=("flat",))).eval()
    save_model(place / "own" / "model", flat, tokenizer, {"name": "flat", "step": 10})
    parts: dict[str, Any] = {
        "channel_mixer": "swiglu",
        "norm": "rmsnorm",
        "mixers": ("attention(heads=2)",),
    }
    llama = LanguageModel(ModelConfig(**sizes, **parts, tied=False)).eval()
    export_transformers(place / "hf", llama, tokenizer)
    (place / "gguf").mkdir()
    _write_gguf(place / "gguf" / "model.gguf", llama, json.loads(tokenizer))
    tokens = torch.tensor([[9, 40, 100, 77, 5, 280]])
    with torch.no_grad():
        outputs = flat.hidden(flat.embed(tokens), 1)
    captured = place / "captured"
    captured.mkdir()
    save_file({"block.1": outputs[0].contiguous()}, captured / "c.safetensors")
    np.save(captured / "c.npy", outputs[0].numpy())
    np.savez(captured / "c.npz", states=outputs[0].numpy())
    (place / "packed").parent.mkdir(exist_ok=True)
    (place / "tokenizer.json").write_text(tokenizer)
    pack("toy:60", place / "tokenizer.json", place / "packed")
    _make_texts(place)
    model = str(place / "own" / "model")
    ask = ["invert", model, "--text", "Tom ran.", "--methods", "sweep", "--layers", "all"]
    _silent(["eval", *ask, "--corpus", "toy:60", "--out", str(place / "rows")])
    _silent(["eval", "loss", model, "--corpus", "toy:60", "--out", str(place / "rows")])


def _make_texts(place: Path) -> None:
    import pandas

    for folder in ("recipe", "text", "request"):
        (place / folder).mkdir()
    recipe = Path(__file__).parents[1] / "train" / "configs" / "demo.yaml"
    (place / "recipe" / "r.yaml").write_text(recipe.read_text())
    (place / "recipe" / "suite.yaml").write_text(
        "shown: {layers: all, slices: '[:, 0:, :]', methods: [sweep, adam], count: 2, length: 4}\n"
        "hidden: {layers: [1, '1+2'], slices: '[:, 1:, :]', methods: chance, seeds: [0, 1]}\n"
    )
    stories = [f"Story {n}. The dog ran home, and Anna said hello." for n in range(60)]
    table = pandas.DataFrame({"text": stories, "number": range(60)})
    text = place / "text"
    table.to_json(text / "stories.jsonl", orient="records", lines=True)
    table.to_parquet(text / "stories.parquet")
    table.to_csv(text / "stories.csv", index=False)
    (text / "stories.txt").write_text("\n<|endoftext|>\n".join(stories) + "\n")
    for name, body in (
        ("look", {"text": "Tom ran.", "models": []}),
        ("ask", {"kind": "invert", "text": "Tom ran.", "models": [], "hidden": [],
                 "solvers": ["propose"], "layer": 1, "noise": 0.1}),
    ):  # fmt: skip
        data = json.dumps(body).encode()
        head = f"POST /{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        (place / "request" / f"{name}.http").write_bytes(head.encode() + data)


def _write_gguf(path: Path, model, tokenizer) -> None:
    """A Llama as llama.cpp's converter writes it."""
    import gguf

    config = model.config
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_block_count(config.n_layers)
    out.add_context_length(config.context)
    out.add_embedding_length(config.d_model)
    out.add_feed_forward_length(model.blocks[0].channel_mixer.up.out_features)
    out.add_head_count(2)
    out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(config.norm_eps)
    out.add_vocab_size(config.vocab_size)
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {entry["content"] for entry in tokenizer["added_tokens"]}
    out.add_tokenizer_model("gpt2")
    out.add_token_list([token for token, _ in vocabulary])
    out.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    out.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    out.add_eos_token_id(0)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    names = {"norm_token": "attn_norm", "norm_channel": "ffn_norm",
             "channel_mixer.gate": "ffn_gate", "channel_mixer.up": "ffn_up",
             "channel_mixer.down": "ffn_down", "token_mixer.q_proj": "attn_q",
             "token_mixer.k_proj": "attn_k", "token_mixer.v_proj": "attn_v",
             "token_mixer.o_proj": "attn_output", "embedding": "token_embd",
             "norm": "output_norm", "head": "output"}  # fmt: skip
    for name, values in weights.items():
        parts = name.removesuffix(".weight").split(".")
        block = f"blk.{parts[1]}." if parts[0] == "blocks" else ""
        own = names[".".join(parts[2:] if block else parts)]
        out.add_tensor(f"{block}{own}.weight", values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def mutant(door: Door, bases: Path, number: int, folder: Path) -> Path:
    """Writes mutant `number` of a door into a new folder, -1 for the valid file; its file."""
    chance = random.Random(f"{door} {number}")
    shutil.copytree(bases / door.base, folder)
    path = folder / door.file
    if number >= 0:
        path.write_bytes(MUTATORS[door.mutator](path.read_bytes(), chance))
    if door.file == "model/tokenizer.json":  # whose hash is that of the mutant
        import hashlib

        meta = folder / "model" / "meta.json"
        known = json.loads(meta.read_text())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        meta.write_text(json.dumps(known | {"tokenizer_sha256": digest}))
    return path


def try_mutant(name: str, bases: Path, number: int, folder: Path) -> tuple[str, str]:
    """How a mutant ends, in a word and in a line or a traceback.

    Returns:
        "answer", "refusal", "traceback", "hang", "memory" or "message" (it is not one line with
        exit code 2), and what was said.
    """
    door = DOORS[name]
    path = mutant(door, bases, number, folder)
    try:
        if door.words == "request":
            return _send(path.read_bytes(), bases)
        model = bases / "own" / "model"
        words = door.words.replace("FILE", Path(door.file).name).replace("MODEL", str(model))
        given = [w.replace("{}", str(folder)).replace("~", " ") for w in words.split()]
        return run_words(given, path.stat().st_size)
    finally:
        shutil.rmtree(folder)


def run_words(words: Sequence[str], size: int) -> tuple[str, str]:
    """How a command ends that reads a file of `size` bytes."""
    out, err = io.StringIO(), io.StringIO()
    before = _peak(reset=True)
    signal.signal(signal.SIGALRM, _raise_hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            code = import_module(f"{words[0]}.__main__").main(list(words[1:]))
    except SystemExit as end:
        code = end.code
    except Hang:
        return "hang", traceback.format_exc()
    except BaseException:
        return "traceback", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if _peak() - before > 3 * size + SPARE:
        return "memory", f"{(_peak() - before) >> 20} MiB for a file of {size} bytes"
    if code == 0:
        return "answer", ""
    said = err.getvalue().rstrip("\n")
    lines = [line for line in said.split("\n") if line.startswith(("error: ", "usage: "))]
    fits = code == 2 and len(lines) == 1 and said.endswith(lines[0]) and len(lines[0]) <= LINE
    return ("refusal" if fits else "message"), said


def _raise_hang(*_: object) -> None:
    raise Hang


def _peak(reset: bool = False) -> int:
    """The largest resident memory since the last reset, in bytes; 0 where Linux does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


_PORT: list[int] = []
_FAILED: list[str] = []  # what the explorer's server says of a request that fails


class _Failures(logging.Handler):
    """Keeps what is logged with a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        _FAILED.append(self.format(record))


def _send(request: bytes, bases: Path) -> tuple[str, str]:
    """How the explorer ends a request: 2xx or 4xx, or a connection that it closes."""
    import socket

    if not _PORT:
        _PORT.append(_explorer(bases))
    _FAILED.clear()
    with socket.create_connection(("127.0.0.1", _PORT[0]), SECONDS) as at:
        at.settimeout(SECONDS)
        at.sendall(request)
        with contextlib.suppress(OSError):
            at.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while chunk := at.recv(65536):
                received += chunk
        except TimeoutError:
            return "hang", repr(received[:500])
        except ConnectionError:
            pass
    status = received[9:12].decode("latin-1")
    if _FAILED:
        return "traceback", _FAILED[0]
    if status.startswith(("2", "4", "3")) or not received:
        return ("refusal" if status.startswith("4") else "answer"), status
    return "message", repr(received[:500])


def _explorer(bases: Path) -> int:
    """The port of an explorer that runs beside, to the end of this process."""
    import threading

    from eval.explore.questions import Library
    from eval.explore.server import Explorer, listen, server

    at = listen("127.0.0.1", 0)
    works = server(Explorer(Library([str(bases / "own")], "toy:60", "cpu"), seconds=2))
    logging.getLogger("uvicorn.error").handlers = [_Failures(logging.ERROR)]
    threading.Thread(target=works.run, kwargs={"sockets": [at]}, daemon=True).start()
    while not works.started:
        time.sleep(0.01)
    return at.getsockname()[1]


def _silent(words: list[str]) -> None:
    ended, said = run_words(words, 1 << 30)
    if ended != "answer":
        raise RuntimeError(f"{' '.join(words)}: {ended}: {said}")


def _work(names: list[str], bases: Path, first: int, step: int) -> None:
    """Tries mutants without end, a line of JSON for each, before and after."""
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries that are not Python's print there
    with tempfile.TemporaryDirectory() as place:
        for name in names:  # libraries take memory when they are first used
            try_mutant(name, bases, -1, Path(place) / "valid")
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ROOM, resource.RLIM_INFINITY))
        number = first
        while True:
            for name in names:
                print(json.dumps([name, number]), file=stdout, flush=True)
                ended, said = try_mutant(name, bases, number, Path(place) / "mutant")
                print(json.dumps([name, number, ended, said[-4000:]]), file=stdout, flush=True)
            number += step


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def outcomes(
    names: list[str], bases: Path, seconds: float, first: int = 0, step: int = 1
) -> Iterator[tuple[str, int, str, str]]:
    """Door, number, end and words of each mutant, tried in a process that is replaced."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        words = [
            sys.executable,
            "-m",
            "scripts.fuzz",
            "--worker",
            str(bases),
            str(first),
            str(step),
        ]
        with subprocess.Popen([*words, "--doors", *names], stdout=subprocess.PIPE) as worker:
            assert worker.stdout
            at, known = (names[0], first), False
            while time.monotonic() < end:
                if not select.select([worker.stdout], [], [], 30 if known else 120)[0]:
                    yield at[0], at[1], "hang", "not ended by an alarm"
                    break
                line = worker.stdout.readline()
                if not line:
                    yield at[0], at[1], "crash", f"exit code {worker.wait()}"
                    break
                known, (name, number, *found) = True, json.loads(line)
                at = name, number
                if found:
                    yield name, number, *found
            worker.kill()
        first = at[1] + step


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the fuzz; 1 where a mutant failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description=__doc__)
    add: Callable = parser.add_argument
    add("--minutes", type=float, default=1.0, metavar="N", help="how long (%(default)s)")
    add("--doors", nargs="+", choices=DOORS, default=list(DOORS), metavar="DOOR", help="which")
    add("--first", type=int, default=0, metavar="N", help="number of the first mutant")
    add("--keep", metavar="DIR", help="where mutants that fail are kept")
    add("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        place, first, step = options.worker
        _work(options.doors, Path(place), int(first), int(step))
    counts: dict[str, Counter[str]] = {name: Counter() for name in options.doors}
    failed = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        bases = Path(place) / "bases"
        bases.mkdir()
        make_bases(bases)
        seconds = 60 * options.minutes
        for name, number, ended, said in outcomes(options.doors, bases, seconds, options.first):
            counts[name][ended] += 1
            if ended in ("answer", "refusal"):
                continue
            reason = (said.strip().splitlines() or [""])[-1][:160]
            failed[f"{name}: {ended}: {reason}"] += 1
            if failed[f"{name}: {ended}: {reason}"] == 1:
                print(f"{name} {number}: {ended}: {reason}", file=sys.stderr, flush=True)
                if options.keep:
                    folder = Path(options.keep) / f"{name.replace(' ', '-')}-{number}"
                    shutil.rmtree(folder, ignore_errors=True)
                    mutant(DOORS[name], bases, number, folder)
                    (folder / "outcome.txt").write_text(said)
    kinds = ("answer", "refusal", "traceback", "message", "hang", "memory", "crash")
    print(f"{'door':24}" + "".join(f"{kind:>11}" for kind in kinds))
    for name, count in counts.items():
        print(f"{name:24}" + "".join(f"{count[kind]:>11,}" for kind in kinds))
    total = sum(counts.values(), Counter[str]())
    print(f"{'all':24}" + "".join(f"{total[kind]:>11,}" for kind in kinds))
    return int(total.total() > total["answer"] + total["refusal"])


if __name__ == "__main__":
    sys.exit(main())
