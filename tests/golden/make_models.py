"""Makes what the golden rows are measured on: stories, a tokenizer, and tiny trained models.

    python -m tests.golden.make_models

The results are committed, so that no change of a recipe, of the toy stories or of an initialisation
moves the golden rows. Run it only to add a model: it leaves those that are there as they are.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from arch import LanguageModel, ModelConfig, save_model
from eval.lenses.stories import CUES, FRAMES, WORDS
from tokenizer import END_OF_TEXT, open_corpus, train_tokenizer

FOLDER = Path(__file__).parent
MODELS, STORIES = FOLDER / "models", FOLDER / "stories"
VOCAB = 384
WIDE = {"d_model": 24, "context": 64}
NARROW = {"d_model": 16, "context": 24}
OURS: dict[str, dict[str, Any]] = {
    "flat": {"mixers": ("flat",), **WIDE},
    "llama": {
        "mixers": ("attention(heads=4, kv_heads=2)",),
        "channel_mixer": "swiglu",
        "d_ff": 64,
        "norm": "rmsnorm",
        **WIDE,
    },
    "depthwise": {"mixers": ("flat+depthwise(size=2)",), **NARROW},
    "expanded": {"mixers": ("expanded(factor=2)",), **NARROW},
    "headed": {"mixers": ("headed(heads=2)",), **NARROW},
    "hybrid": {"mixers": ("attention(heads=2)+flat",), "tied": True, **NARROW},
    "identity": {"mixers": ("identity",), **NARROW},
    "kernel": {"mixers": ("kernel(size=3)",), **NARROW},
    "parallel": {"mixers": ("parallel(branches=2, activation=gelu)",), **NARROW},
    "rectangular": {"mixers": ("rectangular(factor=2)",), **NARROW},
    "recurrent": {
        "mixers": (
            "mixed(heads=2, decay=learnt, projections=true)",
            "combined(heads=2, decay=learnt)",
        ),
        **NARROW,
    },
    "structured": {
        "mixers": ("toeplitz(heads=2, size=3, projections=true)", "row(decay=learnt)+column"),
        **NARROW,
    },
    "in-turn": {"mixers": ("flat", "attention(heads=2)"), "final_norm": False, **NARROW},
}
"""Models of this project, of two blocks each."""
SEEDS = {"flat": (0, 1)}
"""Training seeds; 0 alone for the others. The name of a second one ends in `-s1`."""
STEPS, BATCH, RATE = 400, 16, 1e-2


def main() -> None:
    """Writes what is missing."""
    if not STORIES.exists():
        write_stories()
    tokenizer = golden_tokenizer()
    windows = training_windows(tokenizer)
    for name, settings in OURS.items():
        for seed in SEEDS.get(name, (0,)):
            make_ours(f"{name}-s{seed}" if seed else name, settings, seed, tokenizer, windows)
    for name, model in theirs():
        make_theirs(name, model, tokenizer, windows)


def write_stories() -> None:
    """Writes `train.txt`, `valid.txt` and `stories.jsonl`: toy stories, one after the other."""
    STORIES.mkdir()
    for split, count in (("train", 160), ("valid", 160)):
        stories = list(open_corpus(f"toy:{20 * count if split == 'valid' else count}", split))
        text = f"\n{END_OF_TEXT}\n".join(stories[:count])
        (STORIES / f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    lines = (json.dumps({"text": story}) + "\n" for story in open_corpus("toy:1200:1", "valid"))
    (FOLDER / "stories.jsonl").write_text("".join(lines), encoding="utf-8")


def golden_tokenizer() -> Tokenizer:
    """Byte-level BPE in which two names, animals and moods are one token each."""
    path = FOLDER / "tokenizer.json"
    if not path.exists():
        texts = []
        for i in range(4):
            chosen = {attribute: words.split()[i] for attribute, words in WORDS.items()}
            texts += [(frame + cue).format(**chosen) for frame in FRAMES for cue in CUES.values()]
        texts = texts * 3 + list(open_corpus(str(STORIES), "train"))[:4]
        tokenizer = train_tokenizer(texts, vocab_size=VOCAB)
        path.write_text(tokenizer.to_str(), encoding="utf-8")
    return Tokenizer.from_file(str(path))


def training_windows(tokenizer: Tokenizer) -> Tensor:
    """The training stories as one row of tokens, end-of-text between them, `(N,)`."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens: list[int] = []
    for story in open_corpus(str(STORIES), "train"):
        tokens += [*tokenizer.encode(story, add_special_tokens=False).ids, end]
    return torch.tensor(tokens)


def make_ours(
    name: str, settings: dict[str, Any], seed: int, tokenizer: Tokenizer, text: Tensor
) -> None:
    """Writes `models/NAME/step-000000` and the trained `models/NAME/step-000400`."""
    if (MODELS / name).exists():
        return
    torch.manual_seed(seed)
    model = LanguageModel(ModelConfig(vocab_size=VOCAB, n_layers=2, **settings))
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:10]
    about = {"name": name, "seed": seed, "model_id": digest}
    if name == "flat":
        save_model(MODELS / name / "step-000000", model, tokenizer.to_str(), about | {"step": 0})
    loss = fit(model, text, model.config.context)
    place = MODELS / name / f"step-{STEPS:06d}"
    save_model(place, model.eval(), tokenizer.to_str(), about | {"step": STEPS, "val_loss": loss})


def theirs() -> list[tuple[str, Any]]:
    """Untrained models of transformers: GPT-2 with learnt positions, Llama with grouped keys."""
    torch.manual_seed(0)
    special: Any = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    gpt2 = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=2, **special
    )
    llama = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=24,
        **special,
    )
    return [
        ("hf-gpt2", transformers.GPT2LMHeadModel(gpt2)),
        ("hf-llama", transformers.LlamaForCausalLM(llama)),
    ]


def make_theirs(name: str, model: Any, tokenizer: Tokenizer, text: Tensor) -> None:
    """Writes `models/NAME` in transformers' layout."""
    if (MODELS / name).exists():
        return
    fit(lambda tokens: model(tokens).logits, text, 24, model)
    model.eval().save_pretrained(MODELS / name)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(MODELS / name)


def fit(predict: Any, text: Tensor, context: int, model: Any = None) -> float:
    """Trains a model in place on random windows of the text; the loss of the last ten steps."""
    model = predict if model is None else model
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    draw, losses = torch.Generator().manual_seed(0), []
    for _ in range(STEPS):
        starts = torch.randint(len(text) - context, (BATCH,), generator=draw)
        tokens = torch.stack([text[i : i + context] for i in starts.tolist()])
        loss = cross_entropy(predict(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


if __name__ == "__main__":
    main()
