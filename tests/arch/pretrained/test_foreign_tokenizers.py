"""What stands in a directory of transformers about its tokenizer: it is read as its file says."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from arch import ModelError, export_transformers, import_transformers, load_pretrained, save_model
from arch.__main__ import main as models_command
from arch.formats.hub.export import export_hub
from arch.pretrained.tokenizers import check_pieces
from eval.messages import RequestError
from eval.models.checkpoint import open_model
from tests.arch.cases import byte_tokenizer
from tests.said import one_line


def spoilt(kind):
    """A tokenizer that was saved while padding, truncation or dropout was on."""
    tokenizer = byte_tokenizer()
    pad = {"pad_id": 256, "pad_token": tokenizer.id_to_token(256)}
    if kind == "fixed":
        tokenizer.enable_padding(length=12, **pad)
    elif kind == "longest":
        tokenizer.enable_padding(**pad)
    elif kind == "cut":
        tokenizer.enable_truncation(4)
    elif kind == "random":
        tokenizer.model.dropout = 0.5
    return tokenizer


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["fixed", "longest", "cut", "random"])
def test_a_tokenizer_reads_a_text_whole_and_always_alike(kind, llama):
    import eval as evals

    texts = ["Tom ran.", "a b"]
    expected = evals.loss(f"hf:{llama()}", text=texts).rows[0]
    directory = llama(tokenizer=spoilt(kind))
    given = spoilt(kind)
    before = given.to_str()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    for opened in (open_model(f"hf:{directory}"), open_model(model, tokenizer=given)):
        assert opened.tokenizer.model.dropout is None
        row = evals.loss(opened, text=texts).rows[0]
        assert (row["tokens"], row["nats_per_token"]) == (
            expected["tokens"],
            expected["nats_per_token"],
        )
    assert given.to_str() == before


def test_what_a_tokenizer_adds_and_changes_and_lacks_is_said(llama, capsys):
    import eval as evals

    tokenizer = byte_tokenizer()
    special = next(iter(tokenizer.get_added_tokens_decoder().values())).content
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special} $A", special_tokens=[(special, tokenizer.token_to_id(special))]
    )
    open_model(f"hf:{llama(tokenizer=tokenizer)}")
    assert f"adds {special}" in capsys.readouterr().err
    unknown = Tokenizer(models.WordLevel({str(n): n for n in range(258)}, unk_token="0"))
    model = open_model(f"hf:{llama(tokenizer=unknown)}")
    assert "changes text" in capsys.readouterr().err
    evals.loss(model, text=["1", "2"])
    assert "nothing parts the stories" in capsys.readouterr().err


ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}  # fmt: skip
IDS = {
    "one that no embedding has": (
        lambda f: f["model"]["vocab"].update(zz=2**32 - 2),
        "tokenizer.json: a token has the id 4294967294",
    ),
    "two entries of one": (lambda f: f["model"]["vocab"].update(zz=5), "have one id, 5"),
    "an added one of another": (
        lambda f: f["added_tokens"].append(ADDED | {"id": 5, "content": "new"}),
        "'new' is 5, the library tokenizers reads it as 258",
    ),
    "an added one after a gap": (
        lambda f: f["added_tokens"].append(ADDED | {"id": 299, "content": "new"}),
        "'new' is 299, the library tokenizers reads it as 258",
    ),
}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"added_tokens": ["<s>"], "model": {"vocab": {}}}',
        '{"added_tokens": [], "model": {"vocab": [1, 2]}}',
    ],
)
def test_a_damaged_tokenizer_is_refused_by_the_name_of_its_file(text, llama):
    file = llama() / "tokenizer.json"
    file.write_text(text)
    for read in (import_transformers, load_pretrained):
        with one_line(ModelError, f"{file} is not a tokenizer file"):
            read(str(file.parent))


@pytest.mark.parametrize("kind", IDS)
def test_ids_that_the_library_does_not_keep_are_refused(kind, llama, tmp_path, capsys):
    change, said = IDS[kind]
    known = json.loads(byte_tokenizer().to_str())
    change(known)
    directory = llama(vocab_size=300)
    (directory / "tokenizer.json").write_text(json.dumps(known))
    with one_line(ModelError, said):
        load_pretrained(str(directory))
    file = str(directory / "tokenizer.json")
    assert models_command(["init", str(tmp_path / "o"), "--tokenizer", file]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("LlamaTokenizer", "has no tokenizer.json, nor tokenizer.model of its LlamaTokenizer"),
        ("GemmaTokenizer", "has no tokenizer.json, nor tokenizer.model of its GemmaTokenizer"),
        ("GPT2Tokenizer", "have one id, 5"),
    ],
)
def test_a_class_without_the_files_of_its_vocabulary_is_refused(kind, said, llama):
    directory = llama()
    known = json.loads((directory / "tokenizer.json").read_text())["model"]
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(known["vocab"] | {"zz": 5}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with one_line(ModelError, said):
        load_pretrained(str(directory))


class Pieces:
    """A SentencePiece model as its library shows it, of other ids for some texts."""

    is_unknown = is_byte = is_unused = staticmethod(lambda token: False)

    def __init__(self, model_file="", other=""):
        if model_file:
            raise RuntimeError("could not parse")
        self.tokenizer, self.other = byte_tokenizer(), other

    def get_piece_size(self):
        return 258

    def is_control(self, token):
        return token > 255

    def id_to_piece(self, token):
        return chr(32 + token).replace(" ", "▁")

    def encode(self, texts):
        return [[0] if self.other in text else self.tokenizer.encode(text).ids for text in texts]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("nothing", ""),
        ("  a", "begins with blanks"),
        ("ﬁ", "other tokens"),
        ("aÿ", "of 'aÿ' trans"),
    ],
)
def test_what_is_made_of_a_sentencepiece_model_must_split_as_it_does(other, said, capsys):
    pieces = Pieces(other=other)
    if said in ("", "begins with blanks"):
        check_pieces("m/tokenizer.model", pieces, byte_tokenizer())
        line = capsys.readouterr().err
        assert said in line
        assert bool(line) == bool(said)
    else:
        with one_line(ModelError, said):
            check_pieces("m/tokenizer.model", pieces, byte_tokenizer())


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (None, "tokenizer.model needs the package sentencepiece, as no tokenizer.json is beside"),
        (SimpleNamespace(SentencePieceProcessor=Pieces), "is no model of SentencePiece (could not"),
    ],
)
def test_a_sentencepiece_model_alone_is_read_by_its_own_library(package, said, llama, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", package)
    directory = llama()
    (directory / "tokenizer.json").rename(directory / "tokenizer.model")
    with one_line(ModelError, said):
        load_pretrained(str(directory))


def test_a_text_that_a_tokenizer_cannot_read_is_refused(llama, capsys):
    import eval as evals

    pieces = [(letter, -1.0) for letter in ["<|endoftext|>", *map(str, range(300))]]
    model = open_model(f"hf:{llama(vocab_size=301, tokenizer=Tokenizer(models.Unigram(pieces)))}")
    assert "cannot read every text" in capsys.readouterr().err
    assert evals.loss(model, text=["12"]).rows[0]["tokens"]
    with one_line(RequestError, "--text: the model's tokenizer cannot read it ("):
        evals.loss(model, text=["12", "Tom"])
    with one_line(RequestError, "--corpus toy:40: the model's tokenizer cannot read it ("):
        evals.loss(model, "toy:40")


@pytest.mark.parametrize("windows", ["joined", "lm-eval"])
def test_tokens_that_do_not_spell_a_text_are_said(windows, llama, capsys):
    import eval as evals

    known = ["<|endoftext|>", *"The CAFÉ ran"]
    tokens = {**dict.fromkeys(known), **{str(n): None for n in range(246)}}
    tokenizer = Tokenizer(models.BPE({t: n for n, t in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.Fuse()
    model = open_model(f"hf:{llama(tokenizer=tokenizer)}")
    assert "changes text" not in capsys.readouterr().err
    evals.loss(model, text=["The ran", "The cat ran"], windows=windows)
    said = capsys.readouterr().err
    assert "1 of 2 texts do not spell them (The cat ran is The a ran)" in said


def test_blanks_and_lines_that_a_tokenizer_joins_are_said(llama, capsys):
    """As some models of SentencePiece do: bits/byte counted bytes that no token stands for."""
    import eval as evals

    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    model = open_model(f"hf:{llama(tokenizer=tokenizer)}")
    assert "changes text as it reads it (The CAFÉ  ran is The CAFÉ ran)" in capsys.readouterr().err
    evals.loss(model, text=["if a:\n    b", " a b "])
    assert "1 of 2 texts do not spell them" in capsys.readouterr().err


DECODER = "added_tokens_decoder"


@pytest.mark.parametrize(
    ("file", "held", "said"),
    [
        ("tokenizer_config", {DECODER: {"258": {"content": "cats"}}}, "names cats as 258"),
        ("tokenizer_config", {DECODER: {"5": {"content": "<|pad|>"}}}, "names <|pad|> as 5"),
        (
            "tokenizer_config",
            {DECODER: {"257": {"content": "<|pad|>"}}, "pad_token": "<|pad|>"},
            "",
        ),
        ("tokenizer_config", {DECODER: [1], "bos_token": None}, ""),
        ("tokenizer_config", {"bos_token": "<s>"}, "names <s>, which"),
        ("tokenizer_config", {"extra_special_tokens": {"image": "<i>"}}, "names <i>, which"),
        ("special_tokens_map", {"additional_special_tokens": ["<i>"]}, "names <i>, which"),
        ("special_tokens_map", {"eos_token": {"content": "</s>"}}, "names </s>, which"),
        ("added_tokens", {"<i>": 258}, "names <i> as 258"),
        ("added_tokens", {"<|pad|>": 257}, ""),
    ],
)
def test_tokens_that_only_other_files_name_are_said(file, held, said, llama, capsys):
    directory = llama()
    (directory / f"{file}.json").write_text(json.dumps(held))
    for read in (load_pretrained, import_transformers):
        capsys.readouterr()
        read(str(directory))
        found = [line for line in capsys.readouterr().err.splitlines() if "tokenizer.json" in line]
        assert len(found) == bool(said)
        assert said in "".join(found)


def spaced(tokenizer):
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def in_small_letters(tokenizer):
    tokenizer.normalizer = normalizers.Lowercase()


@pytest.mark.parametrize("change", [spaced, in_small_letters])
@pytest.mark.parametrize(
    "kind", ["GPT2Tokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "T5TokenizerFast"]
)
def test_a_tokenizer_is_what_its_file_says_whatever_class_is_named(kind, change, llama):
    tokenizer = byte_tokenizer()
    change(tokenizer)
    directory = llama(tokenizer=tokenizer)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    read = Tokenizer.from_str(load_pretrained(str(directory)).tokenizer_json)
    text = "In 1902  Tom\n\nran."
    assert read.encode(text).ids == tokenizer.encode(text).ids
    assert read.decode(read.encode(text).ids) == tokenizer.decode(tokenizer.encode(text).ids)


@pytest.mark.parametrize(
    ("files", "begin", "reads"),
    [
        ({}, "<|endoftext|>", "$A"),
        ({"tokenizer_config": {"bos_token": "<|pad|>", "eos_token": "x"}}, "<|pad|>", "$A"),
        ({"tokenizer_config": {"bos_token": None, "eos_token": {"content": "<|pad|>"}}},
         "<|pad|>", "$A"),
        ({"special_tokens_map": {"bos_token": "<|pad|>"}}, "<|pad|>", "<|pad|> $A <|endoftext|>"),
    ],
)  # fmt: skip
def test_a_text_stands_behind_the_token_that_lm_eval_puts_before_it(files, begin, reads, llama):
    """It stood behind an end of text, and without the BOS that lm-eval has the tokenizer add."""
    import eval as evals

    tokenizer = byte_tokenizer()
    special = [(token, tokenizer.token_to_id(token)) for token in reads.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=reads, special_tokens=special)
    directory = llama(initializer_range=0.5, tokenizer=tokenizer)
    for name, held in files.items():
        (directory / f"{name}.json").write_text(json.dumps(held))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    model.eval()
    names = {f"{r}_token": t for r, t in zip(("bos", "eos"), (begin, "x"), strict=True)}
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    ids = torch.tensor([[tokenizer.token_to_id(begin), *tokenizer.encode("Tom ran.").ids]])
    with torch.no_grad():
        expected = float(model(ids, labels=ids).loss)
    question = {"text": ["Tom ran."], "windows": "lm-eval"}
    for opened in (open_model(f"hf:{directory}"), open_model(model, tokenizer=own)):
        (row,) = evals.loss(opened, **question).rows
        assert row["nats_per_token"] == pytest.approx(expected, rel=1e-5)


def test_a_text_ends_with_the_token_that_the_models_files_name(llama, tmp_path):
    """Stories ran into each other, and a continuation went on behind its end."""
    import eval as evals

    tokenizer = byte_tokenizer()
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"][0]["content"] = "</s>"
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    directory = llama(initializer_range=0.5, tokenizer=tokenizer)
    named = {"eos_token": {"content": "</s>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    model.eval()
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    loaded = import_transformers(directory)
    save_model(tmp_path / "ours", loaded.model, loaded.tokenizer_json, loaded.meta)
    export_transformers(tmp_path / "back", loaded.model, loaded.tokenizer_json, loaded.meta)
    export_hub(tmp_path / "hub", loaded.model, loaded.tokenizer_json, loaded.meta)
    texts = ["Tom ran.", "He sat."]
    ids = torch.tensor([tokenizer.encode("".join(f"{text}</s>" for text in texts)).ids])
    with torch.no_grad():
        expected = float(model(ids, labels=ids).loss)
    for opened in (
        open_model(f"hf:{directory}"),
        open_model(tmp_path / "ours"),
        open_model(f"hf:{tmp_path / 'back'}"),
        open_model(f"hf:{tmp_path / 'hub'}"),
        open_model(model, tokenizer=own),
    ):
        (row,) = evals.loss(opened, text=texts).rows
        assert row["nats_per_token"] == pytest.approx(expected, rel=1e-5)
        told = evals.generate(opened, count=30, max_new_tokens=60, temperature=1).rows
        assert all("</s>" not in row["text"] for row in told)
        assert len({len(tokenizer.encode(row["text"]).ids) for row in told}) > 1
    meta = tmp_path / "ours" / "meta.json"
    known = json.loads(meta.read_text())
    meta.write_text(json.dumps(known | {"end": 5}))
    with one_line(ModelError, "end is 5; expected a token"):
        open_model(tmp_path / "ours")
    meta.write_text(json.dumps(known | {"end": None, "stops": []}))
    assert open_model(tmp_path / "ours").end is None


@pytest.mark.parametrize(
    ("file", "named"),
    [("tokenizer_config.json", {"eos_token": "<|im_end|>"}), ("config.json", {"eos_token_id": 258}),
     ("generation_config.json", {"eos_token_id": [0, 256, 258]})],
)  # fmt: skip
def test_a_continuation_ends_at_each_token_that_the_models_files_name(file, named, llama, tmp_path):
    """It went on behind <|im_end|>, where <|endoftext|> is a token too, as for pads."""
    import eval as evals

    def say_the_end(held):
        held["model.embed_tokens.weight"][:, 0] = 9
        held["model.norm.weight"][:] = (torch.arange(16) == 0).float()
        held["lm_head.weight"][:, 0] = (torch.arange(259) == 258).float()
        return held

    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|im_end|>"])
    directory = llama(vocab_size=259, tokenizer=tokenizer, weights=say_the_end)
    (directory / "generation_config.json").unlink()
    known = json.loads((directory / file).read_text()) if (directory / file).exists() else {}
    (directory / file).write_text(json.dumps(known | named))
    loaded = import_transformers(directory)
    save_model(tmp_path / "ours", loaded.model, loaded.tokenizer_json, loaded.meta)
    for opened in (open_model(f"hf:{directory}"), open_model(tmp_path / "ours")):
        (row,) = evals.generate(opened, prompt="Hi", max_new_tokens=4, temperature=0).rows
        assert row["text"] == "Hi"
