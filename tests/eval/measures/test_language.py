"""The loss of a model: over windows, by story, with its interval, and as rows."""

import json
import math
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, normalizers

from arch import LanguageModel, ModelConfig, load_model, save_model
from eval import RequestError, open_model
from eval import loss as eval_loss
from eval.__main__ import main
from eval.analysis.frame import frame
from eval.analysis.statistics import clustered
from eval.analysis.summary import summarise, summarise_rows
from eval.measures.loss import PARTS, measure_documents, measure_loss
from eval.models import corpora, identity
from eval.models.checkpoint import Checkpoint, open_checkpoint
from eval.rows.store import read_rows
from tests.arch.cases import byte_tokenizer
from tests.arch.pretrained.test_decoder import CACHED
from tests.arch.pretrained.test_pretrained import V, random_model, saved
from tests.eval.views.page.cases import about, every_kind
from tests.said import one_line
from tokenizer import load_tokenizer, pack


def stories_in(place, stories):
    """Lays out held-out stories, which are the corpus of that place."""
    place = place / "stories"  # models lie beside
    place.mkdir()
    (place / "valid.txt").write_text("<|endoftext|>".join(f"{story}\n" for story in stories))
    return str(place)


@pytest.mark.parametrize("length", [None, 7])
def test_loss_is_the_mean_over_windows_and_by_story(length, model_directory, tmp_path):
    path, T = model_directory(), length or 32  # the context
    stories = ["Tom had a red ball.", "Mia saw a big dog.\nIt ran.", "The end came."]
    loss = measure_loss(open_checkpoint(path), stories_in(tmp_path, stories), length=length)
    tokenizer = load_tokenizer(path)
    ids = [[*tokenizer.encode(story).ids, 0] for story in stories]
    tokens = [token for story in ids for token in story]
    model, nats = load_model(path).model.double(), []
    for start in range(0, len(tokens) - 1, T):
        window = torch.tensor([tokens[start : start + T + 1]])
        logits = model(window[:, :-1])[0].detach()
        nats += F.cross_entropy(logits, window[0, 1:], reduction="none").tolist()
    counts = [len(ids[0]) - 1, len(ids[1]), len(ids[2])]  # the first token is not predicted
    assert loss["tokens"] == len(tokens) - 1 == len(nats) > 32
    assert loss["bytes"] == sum(len(story.encode()) for story in stories)
    assert loss["nats_per_token"] == pytest.approx(sum(nats) / loss["tokens"], rel=1e-5)
    assert loss["bits_per_byte"] == pytest.approx(sum(nats) / loss["bytes"] / math.log(2), rel=1e-5)
    expected = [float(part.sum()) for part in torch.tensor(nats).split(counts)]
    assert loss["parts"]["nats"] == pytest.approx(expected, abs=2e-4)
    assert loss["parts"]["tokens"] == counts
    assert loss["parts"]["bytes"] == [len(story.encode()) for story in stories]
    assert loss["stories"] == 3


@pytest.mark.parametrize("length", [None, 7])
def test_the_loss_as_lm_eval_cuts_text(length, model_directory, tmp_path):
    """Token by token; tests/interop/test_lm_eval.py asks lm-eval itself."""
    path, T = model_directory(), length or 32
    stories = ["Tom had a red ball.", "Mia saw a big dog. " * 9, "It ran. " * 40, "é"]
    checkpoint, corpus = open_checkpoint(path), stories_in(tmp_path, stories)
    loss = measure_documents(checkpoint, corpus, batch_size=3, length=length)
    model, tokenizer, nats = load_model(path).model.double(), load_tokenizer(path), []
    for story in stories:
        line = [0, *tokenizer.encode(story.strip()).ids]
        last = len(line) - 1
        for k in range(last):
            whole = k // T * T + T <= last
            start = k // T * T if whole else max(0, last - T)
            logits = model(torch.tensor([line[start : k + 1]]))[0, -1].detach()
            nats.append(float(F.cross_entropy(logits, torch.tensor(line[k + 1]))))
    assert max(len(tokenizer.encode(story).ids) for story in stories) > 2 * T
    assert loss["tokens"] == len(nats)
    size = sum(len(story.strip().encode()) for story in stories)
    assert loss["bits_per_byte"] == pytest.approx(sum(nats) / size / math.log(2), rel=1e-5)
    spelt = measure_documents(checkpoint, "", texts=["A <|endoftext|>B"])
    ids = tokenizer.encode("A <|endoftext|>B").ids
    assert (spelt["tokens"], spelt["bytes"]) == (len(ids), 16)


@pytest.mark.parametrize("family", ["gpt2", "gptj", "gemma2", "cohere"])
def test_the_loss_as_lm_eval_counts_rows_of_no_token(family, tmp_path):
    """Of a head that is tied, has a bias, and whose logits are capped or scaled."""
    name, settings = CACHED[family]
    theirs = random_model(name, torch.float32, settings | {"vocab_size": V + 14})
    path, text, tokenizer = saved(theirs, tmp_path / "m"), "Tom had a red ball.", byte_tokenizer()
    ids = torch.tensor([[256, *tokenizer.encode(text).ids]])
    nats = F.cross_entropy(theirs(ids).logits[0, :-1], ids[0, 1:])
    opened = open_checkpoint(f"hf:{path}"), open_model(theirs, tokenizer=tokenizer)
    for checkpoint in opened:
        head = checkpoint.model.head.weight
        loss = measure_documents(checkpoint, "", texts=[text])
        assert loss["nats_per_token"] == pytest.approx(float(nats), rel=1e-5)
        assert checkpoint.model.head.weight is head


def test_white_space_around_the_text_of_a_row_is_predicted_as_lm_eval_does(
    model_directory, tmp_path
):
    """It was left out, though lm-eval reads a row as it is."""
    texts = ["Tom ran home.\n", "  Mia saw a dog.", "It rained."]
    rows = tmp_path / "valid.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, " \n"]))
    path = model_directory()
    checkpoint, figures = open_checkpoint(path), ("tokens", "bytes", "bits_per_byte")
    found = measure_documents(checkpoint, str(rows))
    expected = measure_documents(checkpoint, "", texts=texts)
    assert [found[name] for name in figures] == [expected[name] for name in figures]
    joined = eval_loss(path, corpus=str(rows)).rows[0]
    assert joined["bytes"] == sum(len(text.strip()) for text in texts)


def test_rows_of_other_windows_are_other_rows(model_directory, tmp_path):
    corpus = stories_in(tmp_path, ["Tom had a red ball.", "Mia saw a big dog."])
    asked: Any = {"corpus": corpus, "out": str(tmp_path / "out")}
    plain = eval_loss(model_directory(), **asked)
    other = eval_loss(model_directory(), windows="lm-eval", **asked)
    short = eval_loss(model_directory(), length=3, **asked)
    assert len({result.rows[0]["key"] for result in (plain, other, short)}) == 3
    assert other.rows[0]["tokens"] == plain.rows[0]["tokens"] - 1
    lines = frame([*plain.rows, *other.rows, *short.rows])
    assert set(lines["windows"]) == {"joined", "lm-eval", "joined, 3 tokens"}
    old = [{name: v for name, v in row.items() if name != "windows"} for row in plain.rows]
    assert set(frame(old)["windows"]) == {"joined"}


@pytest.mark.parametrize("windows", ["joined", "lm-eval"])
def test_a_window_that_memory_does_not_hold_is_refused_before_it_is_run(
    windows, model_directory, monkeypatch
):
    """One of the 131,072 tokens of Llama 3's context took more than a hundred gigabytes."""
    monkeypatch.setattr("eval.models.memory.host_memory", lambda: 1 << 17)  # 16 tokens of width 32
    asked: Any = {"windows": windows, "text": "Mia saw a big dog. " * 9}
    with one_line(RequestError, "--length: "):
        eval_loss(model_directory(), **asked)
    assert eval_loss(model_directory(), **asked, length=8).rows
    assert eval_loss(model_directory(), **asked | {"text": "Mia ran."}).rows
    with one_line(RequestError, "--length 33: the context of "):
        eval_loss(model_directory(), **asked, length=33)


def test_losses_of_two_texts_are_two_lines_and_compared_on_one(model_directory, tmp_path, capsys):
    """They were pooled, and `compare` of such rows alone gave a traceback."""
    path, results = model_directory(), str(tmp_path / "results")
    for words in ("Tom had a red ball.", "The end came."):
        assert main(["loss", str(path), "--text", words, "--out", results]) == 0
    rows = read_rows([results])
    assert not any("corpus_hash" in row for row in rows)  # the working directory's files were read
    records = summarise_rows(rows, "loss")
    for record, row in zip(records, rows, strict=True):
        assert record["bits_per_byte"] == pytest.approx(row["bits_per_byte"], abs=1e-4)
    assert main(["compare", results]) == 0
    assert capsys.readouterr().out


def test_a_corpus_written_anew_under_its_name_is_another(model_directory, tmp_path, capsys):
    """Its earlier loss was given as its own; and losses of both stood in one column, as alike."""
    path, corpus, results = model_directory(), tmp_path / "book.jsonl", tmp_path / "results"
    command = ["loss", str(path), "--corpus", str(corpus), "--stories", "2", "--out"]
    for number, words in enumerate(("Tom had a ball.", "The end came at last.", "Mia saw a dog.")):
        corpus.write_text("".join(f'{{"text": "{words} {i}"}}\n' for i in range(99)))
        assert main([*command, f"{results}{number}"]) == 0
        assert main([*command, f"{results}{number}"]) == 0  # its row is there
    capsys.readouterr()
    assert main([*command, f"{results}0"]) == 2
    refused = f"error: --out {results}0: its rows on --corpus {corpus} are of another text of that"
    assert capsys.readouterr().err.startswith(refused)
    rows = [row for number in range(3) for row in read_rows([f"{results}{number}"])]
    told = list(summarise_rows([row | {"key": str(i)} for i, row in enumerate(rows)], "loss"))
    names = {record["corpus"]: record["bits_per_byte"] for record in told}
    expected = {
        f"{corpus} ({row['corpus_hash'][:8]}, {row['bytes']} bytes)": row["bits_per_byte"]
        for row in rows
    }
    assert names == pytest.approx(expected, abs=1e-4)
    alike = [{k: v for k, v in row.items() if k != "corpus_hash"} for row in rows[:1] * 2]
    assert [r["corpus"] for r in summarise_rows(alike, "loss")] == [str(corpus)]


@pytest.mark.parametrize("change", ["config.json", "module", "tokenizer"])
def test_rows_of_other_settings_beside_the_same_weights_are_refused(
    change, model_directory, tmp_path
):
    """As where a config.json was corrected: the earlier figures were given as the model's own."""
    path = model_directory()
    question: Any = {"text": "Tom had a ball.", "out": str(tmp_path / "out")}
    settings = json.loads((path / "config.json").read_text()) | {"norm_eps": 0.1}
    module, tokenizer = load_model(path).model, load_tokenizer(path)
    state = module.state_dict()

    def open_changed():
        if change == "config.json":
            return path
        return open_model(module, tokenizer=tokenizer, name="flat")

    before = open_model(path) if change == "config.json" else open_changed()
    assert eval_loss(open_changed(), **question).rows == eval_loss(open_changed(), **question).rows
    if change == "config.json":
        (path / "config.json").write_text(json.dumps(settings))
    elif change == "module":
        module = LanguageModel(ModelConfig.from_json(json.dumps(settings)))
        module.load_state_dict(state)
    else:
        tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(RequestError, match=r"its rows of \S+ are of other settings \(config.json"):
        eval_loss(open_changed(), **question)
    with pytest.raises(RequestError, match="has the name and weights of another model that is as"):
        eval_loss([before, open_changed()], text="Tom had a ball.")


@pytest.mark.first(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", ["base", "factors", "hub"])
def test_rows_of_other_settings_of_a_pretrained_model_are_refused(change, tmp_path, monkeypatch):
    """Of a GGUF file, whose factors stand in no setting, or of a name on the hub."""
    pytest.importorskip("gguf")
    from tests.arch.pretrained.test_gguf import write_gguf

    file, theirs = tmp_path / "m.gguf", tmp_path / "theirs"
    question: Any = {"text": "Tom had a ball.", "out": str(tmp_path / "out")}
    model = write_gguf(file)
    changed: Any = {"settings": {"rope.freq_base": 500.0}}
    if change == "factors":
        changed = {"extra": {"rope_freqs.weight": np.array([1, 1, 2, 4], np.float32)}}
    if change == "hub":
        model.save_pretrained(theirs)
        (theirs / "tokenizer.json").write_text(byte_tokenizer().to_str())
        monkeypatch.setattr(identity, "facts_of", lambda path: {})  # nothing lies beside a name
    name = f"hf:{theirs if change == 'hub' else file}"
    assert eval_loss(name, **question).rows == eval_loss(name, **question).rows
    torch.manual_seed(0)  # the same tensors
    write_gguf(file, **changed)
    config = theirs / "config.json"
    if change == "hub":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.1}))
    with pytest.raises(RequestError, match=r"its rows of \S+ are of other settings"):
        eval_loss(name, **question)


def test_a_model_that_is_trained_again_while_it_is_open_is_refused(model_directory):
    """Its rows had the hash of the weights that lay there by then."""
    path = model_directory()
    opened = open_model(path)
    loaded = load_model(path)
    with torch.no_grad():
        loaded.model.head.weight.mul_(2)
    save_model(path, loaded.model, loaded.tokenizer_json, loaded.meta)
    with pytest.raises(RequestError, match=r"safetensors: was written anew since it was opened; o"):
        eval_loss(opened, text="Tom had a ball.")
    assert eval_loss(open_model(path), text="Tom had a ball.").rows


def test_rows_of_a_module_with_a_hook_are_not_those_without(model_directory, tmp_path):
    """Nor those of another hook: no hash tells what it does."""
    path = model_directory()
    module, tokenizer = load_model(path).model, load_tokenizer(path)
    question: Any = {"text": "Tom had a ball.", "out": str(tmp_path / "out")}
    nats = []
    for factor in (1.0, 2.0, 3.0, 1.0):
        hooks = [module.norm.register_forward_hook(lambda *_, f=factor: _[2] * f)]
        for hook in hooks if factor == 1.0 else ():
            hook.remove()
        opened = open_model(module, tokenizer=tokenizer, name="flat")
        nats.append(eval_loss(opened, **question).rows[0]["nats_per_token"])
        hooks[0].remove()
    assert nats[0] == nats[3]
    assert len({*nats}) == 3


@pytest.mark.parametrize("prefix", ["", "hub:"])
@pytest.mark.parametrize("large", [1 << 26, 9])
def test_a_folder_whose_files_have_the_sizes_of_before_is_another(
    tmp_path, monkeypatch, large, prefix
):
    """As where stories are shuffled; its earlier loss was given as its own."""
    monkeypatch.setattr("tokenizer.corpus.LARGE", large)
    monkeypatch.setattr("tokenizer.corpus.PIECE", 4)
    (tmp_path / "train.txt").write_text("Some.")
    found = set()
    for time, words in enumerate((["One cat.", "Two cat."], ["Two cat.", "One cat."])):
        (tmp_path / "valid.txt").write_text("<|endoftext|>".join(words))
        os.utime(tmp_path / "valid.txt", (time, time))
        found.add(corpora.corpus_hash(f"{prefix}{tmp_path}"))
    assert len(found) == 2
    assert corpora.corpus_hash(prefix) is None  # of no text, not of the working directory


def test_a_corpus_is_named_alike_on_every_machine(tmp_path):
    labels, tokenizer = set(), tmp_path / "tokenizer.json"
    tokenizer.write_text(byte_tokenizer().to_str())
    for machine in ("laptop", "server"):
        pack("toy:20", tokenizer, tmp_path / machine / "stories")
        labels.add(corpora.corpus_label(str(tmp_path / machine / "stories")))
    (label,) = labels
    assert re.fullmatch(r"stories \([0-9a-f]{8}\)", label)
    (tmp_path / "book.txt").write_text("Once.")
    assert corpora.corpus_label(str(tmp_path / "book.txt")).startswith("book.txt (")
    assert [*map(corpora.corpus_label, ("toy:20", "/gone/data"))] == ["toy:20", "data"]


@pytest.mark.parametrize("prefix", ["", "hub:"])
def test_two_folders_of_one_name_are_two_corpora(tmp_path, monkeypatch, prefix):
    """Recoveries of prompts from both were averaged."""
    labels = set()
    for place in ("english", "german"):
        (tmp_path / place / "text").mkdir(parents=True)
        (tmp_path / place / "text" / "valid.txt").write_text(f"One {place} story.\n\nTwo.")
        labels.add(corpora.corpus_label(f"{prefix}{tmp_path / place / 'text'}"))
    assert len(labels) == 2
    assert all(re.fullmatch(rf"{prefix}text \([0-9a-f]{{8}}\)", label) for label in labels)
    assert corpora.corpus_label("hub:some/text") == "hub:some/text"  # none is like another's
    monkeypatch.chdir(tmp_path)
    (tmp_path / "german" / "text").rename("toy")
    assert corpora.corpus_label("toy") == "toy"  # the generator, whatever lies here
    monkeypatch.chdir(tmp_path / "english" / "text")
    assert {corpora.corpus_label(f"{prefix}{name}") for name in (".", "../text")} < labels


def test_stories_are_joined_without_an_end_of_text_where_there_is_none(small_model, tmp_path):
    """A tokenizer of bytes, with no special token at all, as of some pretrained models."""
    (tmp_path / "valid.txt").write_text("One cat.<|endoftext|>Two dogs.", "utf-8")
    (tmp_path / "train.txt").write_text("Some.", "utf-8")
    model = small_model()
    plain = Tokenizer.from_str(
        json.dumps({**json.loads(byte_tokenizer().to_str()), "added_tokens": []})
    )
    checkpoint = Checkpoint(model, model.config, plain, {"name": "m"}, tmp_path)
    loss = measure_loss(checkpoint, str(tmp_path))
    assert (loss["tokens"], loss["bytes"], loss["stories"]) == (16, 17, 2)
    with one_line(RequestError, "name its bos_token in a tokenizer_config.json, or take --windows"):
        measure_documents(checkpoint, str(tmp_path))


def test_many_stories_make_few_parts(model_directory, tmp_path):
    corpus = stories_in(tmp_path, [f"Story {i}." for i in range(PARTS + 9)])
    loss = measure_loss(open_checkpoint(model_directory()), corpus, stories=PARTS + 7)
    assert loss["stories"] == PARTS + 7
    assert len(loss["parts"]["nats"]) == PARTS
    assert sum(loss["parts"]["tokens"]) == loss["tokens"]
    assert sum(loss["parts"]["bytes"]) == loss["bytes"]
    assert sum(loss["parts"]["nats"]) == pytest.approx(
        loss["nats_per_token"] * loss["tokens"], rel=1e-5
    )


def figures(rows):
    """Bits per byte of rows of one model: value, low, high, n, models."""
    found = summarise(frame(rows), ["model"]).set_index("quantity")
    return found.loc["bits_per_byte", "value":].tolist()


def loss_row(checkpoint, **changes):
    (row,) = [row for row in every_kind(checkpoint) if row["kind"] == "loss"]
    return row | changes


def test_bits_per_byte_between_limits():
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 200, 60)
    nats = sizes * rng.normal(0.8, 0.1, 60)

    def bits(nats, sizes):
        parts = {"nats": nats, "bytes": sizes, "tokens": [1] * len(nats)}
        return figures([loss_row(about(0), parts=parts)])[:3]

    expected = clustered((nats / math.log(2)).tolist(), sizes.tolist(), range(60), [0] * 60)
    assert bits(nats.tolist(), sizes.tolist()) == pytest.approx(expected)
    alone = bits([math.log(2) * 1.5], [1])
    assert alone[0] == 1.5
    assert np.isnan(alone[1:]).all()


def test_a_loss_that_is_not_finite_is_refused(model_directory, tmp_path):
    checkpoint = open_checkpoint(model_directory())
    checkpoint.model.head.weight[3] = math.nan
    with pytest.raises(RequestError, match="gives probabilities that are not finite"):
        measure_loss(checkpoint, stories_in(tmp_path, ["Tom had a red ball.", "The end."]))
