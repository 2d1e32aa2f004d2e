"""The doors that the fuzz tries: for each the valid file, how it is mutated, and who reads it."""

import io
import json
import random
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from scripts.fuzz.mutants import MUTATORS


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
SAMPLES = "samples_stories_2026-11-25T12-00-00.1.jsonl"
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
    "hub config": Door("hub", "config.json", "json", HF_LOSS),
    "hub weights": Door("hub", "model.safetensors", "safetensors", HF_LOSS),
    "import": Door("hf", "config.json", "json", "arch import {} {}/new"),
    "gguf": Door("gguf", "model.gguf", "bytes", "eval loss hf:{}/model.gguf --text Tom~ran."),
    "capture": Door("captured", "c.safetensors", "safetensors", RECOVER),
    "npy": Door("captured", "c.npy", "npy", RECOVER),
    "npz": Door("captured", "c.npz", "bytes", RECOVER),
    "rows": Door("rows", "rows.jsonl", "lines", "eval summary {}"),
    "rows on a page": Door("rows", "rows.jsonl", "lines", "eval report {} --out {}/page.html"),
    "rows compared": Door("rows", "rows.jsonl", "lines", "eval compare {}"),
    "samples": Door("samples", f"b/{SAMPLES}", "lines", "eval compare {}/a {}/b"),
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


def make_bases(folder: Path) -> None:
    """Makes the valid files in a folder, about 1 MB: models, captured outputs, rows, stories."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from arch import LanguageModel, ModelConfig, save_model
    from arch.formats.hub.export import export_hub
    from arch.formats.llama import export_transformers
    from tokenizer import open_corpus, pack, train_tokenizer

    tokenizer = train_tokenizer(open_corpus("toy:60", "train"), vocab_size=300).to_str()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 300, "context": 32, "d_model": 16, "n_layers": 2}
    flat = LanguageModel(ModelConfig(**sizes, mixers=("flat",))).eval()
    save_model(folder / "own" / "model", flat, tokenizer, {"name": "flat", "step": 10})
    parts: dict[str, Any] = {
        "channel_mixer": "swiglu",
        "norm": "rmsnorm",
        "mixers": ("attention(heads=2)",),
    }
    llama = LanguageModel(ModelConfig(**sizes, **parts, tied=False)).eval()
    export_transformers(folder / "hf", llama, tokenizer)
    export_hub(folder / "hub", flat, tokenizer, {"name": "flat", "step": 10})
    _make_samples(folder / "samples")
    (folder / "gguf").mkdir()
    _write_gguf(folder / "gguf" / "model.gguf", llama, json.loads(tokenizer))
    tokens = torch.tensor([[9, 40, 100, 77, 5, 280]])
    with torch.no_grad():
        outputs = flat.hidden(flat.embed(tokens), 1)
    captured = folder / "captured"
    captured.mkdir()
    save_file({"block.1": outputs[0].contiguous()}, captured / "c.safetensors")
    np.save(captured / "c.npy", outputs[0].numpy())
    np.savez(captured / "c.npz", states=outputs[0].numpy())
    (folder / "tokenizer.json").write_text(tokenizer)
    pack("toy:60", folder / "tokenizer.json", folder / "packed")
    _make_texts(folder)
    model = str(folder / "own" / "model")
    ask = ["invert", model, "--text", "Tom ran.", "--solvers", "sweep", "--layers", "all"]
    _silent(["eval", *ask, "--corpus", "toy:60", "--out", str(folder / "rows")])
    _silent(["eval", "loss", model, "--corpus", "toy:60", "--out", str(folder / "rows")])


def _make_samples(folder: Path) -> None:
    """Samples of lm-eval of two models."""
    lines = (
        {"doc_id": n, "doc_hash": f"{n:064x}", "metrics": ["bits_per_byte", "acc"],
         "bits_per_byte": [-40.5 - n, 60 + n], "acc": float(n % 2)}
        for n in range(30)
    )  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for model in ("a", "b"):
        (folder / model).mkdir(parents=True)
        (folder / model / SAMPLES).write_text(text)


def _make_texts(folder: Path) -> None:
    import pandas

    for name in ("recipe", "text", "request"):
        (folder / name).mkdir()
    recipe = Path(__file__).parents[2] / "train" / "configs" / "demo.yaml"
    (folder / "recipe" / "r.yaml").write_text(recipe.read_text())
    (folder / "recipe" / "suite.yaml").write_text(
        "shown: {layers: all, slices: '[:, 0:, :]', solvers: [sweep, adam], count: 2, length: 4}\n"
        "hidden: {layers: [1, '1+2'], slices: '[:, 1:, :]', solvers: chance, seeds: [0, 1]}\n"
    )
    stories = [f"Story {n}. The dog ran home, and Anna said hello." for n in range(60)]
    table = pandas.DataFrame({"text": stories, "number": range(60)})
    text = folder / "text"
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
        (folder / "request" / f"{name}.http").write_bytes(head.encode() + data)


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
    rng = random.Random(f"{door} {number}")
    shutil.copytree(bases / door.base, folder)
    path = folder / door.file
    if number >= 0:
        path.write_bytes(MUTATORS[door.mutator](path.read_bytes(), rng))
    if door.file == "model/tokenizer.json":  # whose hash is that of the mutant
        from arch.storage.files import file_sha256

        meta = folder / "model" / "meta.json"
        known = json.loads(meta.read_text())
        meta.write_text(json.dumps(known | {"tokenizer_sha256": file_sha256(path)}))
    return path


def _silent(words: list[str]) -> None:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = import_module(f"{words[0]}.__main__").main(words[1:])
    if code:
        raise RuntimeError(f"{' '.join(words)}: {said.getvalue()}")
