"""What a model was trained on is never told as held out, whatever is given as a corpus."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import eval as evals
from arch import LanguageModel, ModelConfig
from arch.formats.hub.export import export_hub
from arch.formats.llama import export_transformers
from eval import RequestError
from eval.__main__ import main
from eval.measures.bits.measure import Question
from eval.measures.bits.task import Design
from eval.models.checkpoint import Checkpoint, open_model
from eval.models.corpora import choose_corpus, own_corpus
from eval.models.text import held_out_text
from tests.arch.cases import byte_tokenizer
from tests.said import one_line
from tokenizer import PackedData, open_corpus, pack
from tokenizer.pack import Layout

TALES = [f"Tale {number} of a cat." for number in range(400)]
OTHERS = [f"Another {number} of a dog." for number in range(400)]
ROOTS = {"book.txt": TALES, "other.txt": OTHERS, "tales/train.txt": TALES}
ROOTS |= {"tales/valid.txt": OTHERS[:40], "tales/test.txt": OTHERS}


@pytest.fixture
def read(tmp_path, monkeypatch, small_tokenizer):
    """Lays out texts where commands run; `read("book.txt 0.3")` packs one, and gives the data."""
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(small_tokenizer.to_str())
    for name, stories in ROOTS.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("<|endoftext|>".join(stories))

    def named(words: str) -> str:
        source, _, fraction = words.partition(" ")
        if not fraction:
            return source
        data = Path(f"{source.replace('/', '-')}-{fraction}")
        if not data.exists():
            pack(source, "t.json", data, valid_fraction=float(fraction))
        return str(data)

    return named


@pytest.fixture
def trained(read, small_model, small_tokenizer):
    """A model that records the data of its training, as `train` does."""
    model = small_model(n_layers=1)

    def make(words: str, **changed) -> Checkpoint:
        data = PackedData(read(words))
        about = {"name": "m", "data": str(data.path), "data_sha256": data.hash}
        about |= {"data_source": data.meta["source"], "field": data.meta["field"]}
        about |= {name: data.meta[name] for name in ("valid_fraction", "source_files")} | changed
        return Checkpoint(model, model.config, small_tokenizer, about, Path("runs", "m"))

    return make


@pytest.mark.parametrize(
    ("data", "corpus"),
    [
        ("tales 0.05", "tales/train.txt"),
        ("tales 0.05", "tales/train.txt 0.05"),
        ("book.txt 0.05", "book.txt 0.3"),
        ("book.txt 0.05", "./book.txt 0.3"),
    ],
)
def test_a_corpus_that_holds_out_what_was_trained_on_is_refused(data, corpus, trained, read):
    model, corpus = trained(data), read(corpus)
    with one_line(RequestError, f"--corpus {corpus}: holds out "):
        held_out_text(model, corpus)


@pytest.mark.parametrize("fraction", ["0.05", "0.3"])
def test_what_was_trained_on_is_known_by_what_it_is(fraction, trained, read, monkeypatch):
    """It was known by its path, as it was typed: from another folder, or as a copy, it was read."""
    divided, book = trained(f"tales {fraction}"), trained(f"book.txt {fraction}")
    refused = pytest.raises(RequestError, match="holds out ")
    Path("elsewhere").mkdir()
    Path("elsewhere", "copy.txt").write_bytes(Path("tales", "train.txt").read_bytes())
    pack(read("book.txt 0.4"), "t.json", "again")
    monkeypatch.chdir("elsewhere")
    for corpus in ("../tales/train.txt", "copy.txt"):
        with refused:
            held_out_text(divided, corpus)
    for corpus in ("../tales", "../tales/valid.txt", "../other.txt"):
        assert set(held_out_text(divided, corpus).held_out()).isdisjoint(TALES)
    for corpus in ("../book.txt-0.4", "../again"):
        with refused:
            held_out_text(book, corpus)
    own = set(held_out_text(book, "../book.txt").held_out())
    assert own == set(open_corpus("../book.txt", "valid", valid_fraction=float(fraction)))


@pytest.mark.parametrize("data", ["tales 0.05", "book.txt 0.05"])
def test_models_and_data_of_before_files_were_recorded_go_by_what_lies_there(data, trained, read):
    model, recorded = trained(data), read("book.txt 0.3")
    del model.meta["source_files"]
    meta = Path(recorded, "meta.json")
    old = json.loads(meta.read_text())
    del old["source_files"]
    meta.write_text(json.dumps(old))
    for corpus in {"tales/train.txt", recorded} if data.startswith("tales") else {recorded}:
        with pytest.raises(RequestError, match="holds out "):
            held_out_text(model, corpus)
    (Path("valid.txt")).write_bytes(Path("tales", "train.txt").read_bytes())
    own = trained("valid.txt 0.3")
    del own.meta["source_files"]
    assert held_out_text(own, "valid.txt").fraction == 0.3


def test_a_text_of_ones_own_is_asked_of_beside_the_text_of_training(trained, monkeypatch):
    """The files of the working directory were read for it, and refused."""
    model = trained("tales 0.05")
    monkeypatch.chdir("tales")
    for corpus in ("", "toy:400"):
        assert held_out_text(model, corpus).fraction == 0.05


def test_a_folder_that_datasets_divides_by_its_card_is_asked_about(trained, read, monkeypatch):
    """All its files were taken for training, so that a model was refused its own held-out text."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    folder = Path("cards")
    folder.mkdir()
    for name, stories in (("a", TALES), ("b", OTHERS)):
        lines = "".join(json.dumps({"text": story}) + "\n" for story in stories)
        (folder / f"{name}.jsonl").write_text(lines)
    splits = "".join(
        f"  - split: {split}\n    path: {name}.jsonl\n"
        for split, name in (("train", "a"), ("validation", "b"))
    )
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n{splits}---\n"
    (folder / "README.md").write_text(card)
    pack("hub:cards", "t.json", "packed")
    model = trained("packed")
    for corpus in ("packed", "hub:cards"):
        assert set(held_out_text(model, corpus).held_out()) == set(OTHERS)


def test_data_packed_from_packed_data_keep_what_was_held_out(trained, read, capsys):
    """The text that the first packing read was not known any more."""
    pack(read("book.txt 0.02"), "t.json", "rows", Layout("rows", 33))
    model = trained("rows")
    stories = set(held_out_text(model, "book.txt").held_out())
    assert stories == set(open_corpus("book.txt", "valid", valid_fraction=0.02))
    with one_line(RequestError, "--corpus book.txt-0.3: holds out 0.3 "):
        held_out_text(model, read("book.txt 0.3"))


@pytest.mark.parametrize("export", [export_hub, export_transformers])
def test_an_export_reads_what_its_model_reads(export, trained, read):
    """Exports knew no source: they were asked about what their model was trained on."""
    ours = ModelConfig(vocab_size=400, d_model=8, n_layers=1, context=16, norm="rmsnorm",
                       mixers=("attention(heads=2)",), channel_mixer="swiglu")  # fmt: skip
    model, (divided, book) = LanguageModel(ours), map(trained, ("tales 0.05", "book.txt 0.3"))
    for name, meta in (("divided", divided.meta), ("book", book.meta)):
        tokenizer = Tokenizer.from_file("t.json")
        export(name, model, tokenizer.to_str(), {**meta, "step": 10})
    divided, book = (open_model(f"hf:{name}") for name in ("divided", "book"))
    for checkpoint, corpus in ((divided, "tales/train.txt"), (book, read("book.txt 0.4"))):
        with pytest.raises(RequestError, match="holds out "):
            held_out_text(checkpoint, corpus)
    assert len(list(held_out_text(divided, "tales/valid.txt").held_out())) == 40


@pytest.mark.parametrize(
    ("data", "corpus", "count"),
    [
        ("tales 0.05", "tales", 40),
        ("tales 0.05", "tales/valid.txt", 40),
        ("tales 0.05", "tales/test.txt", None),  # which is not read in training
        ("tales 0.05", "other.txt 0.3", None),
        ("tales 0.05", "tales 0.05", 40),
        ("book.txt 0.3", "book.txt", None),
        ("book.txt 0.3", "book.txt 0.3", None),
        ("book.txt 0.3", "book.txt 0.02", None),
        ("book.txt 0.05", "other.txt 0.3", None),
        ("book.txt 0.05", "tales", 40),
    ],
)
def test_what_was_held_out_and_other_text_is_read(data, corpus, count, trained, read):
    model = trained(data)
    stories = set(held_out_text(model, read(corpus)).held_out())
    assert stories
    assert stories.isdisjoint(open_corpus(read(data), "train"))
    assert count in (None, len(stories))


def test_a_source_that_lost_its_division_is_not_the_corpus_unasked(trained, capsys):
    """It was read, and named as the held-out stories of the training data."""
    model = trained("tales 0.05", data="nowhere")
    assert own_corpus(model)[0] == "tales"
    Path("tales", "valid.txt").unlink()
    Path("tales", "test.txt").unlink()
    assert own_corpus(model)[0] == "toy"
    with one_line(RequestError, "--corpus tales: holds out "):
        held_out_text(model, "tales")


def test_the_refusal_is_one_line_of_a_command(read, model_directory, capsys):
    path = model_directory(n_layers=1)
    about = json.loads((path / "meta.json").read_text())
    about |= {"source_files": PackedData(read("tales 0.05")).meta["source_files"]}
    (path / "meta.json").write_text(json.dumps(about))
    for corpus, code in (("tales/train.txt", 2), ("tales", 0)):
        assert main(["loss", str(path), "--corpus", corpus, "--stories", "2"]) == code
    said = capsys.readouterr().err
    assert said.count("--corpus tales/train.txt") == 1


def test_a_file_that_its_name_tells_to_be_held_out_is_read_whole(read, model_directory, capsys):
    """A twentieth of it was read, without a word; its folder was read whole."""
    path, folder = model_directory(n_layers=1), Path("lone")
    folder.mkdir()
    lines = "".join(json.dumps({"text": story}) + "\n" for story in TALES)
    for file in (folder / "valid.jsonl", Path("test.jsonl")):
        file.write_text(lines)
    rows = [evals.loss(path, corpus=c).rows[0] for c in ("lone", "lone/valid.jsonl")]
    assert {(row["tokens"], row["bytes"], row["stories"]) for row in rows} == {
        (rows[0]["tokens"], rows[0]["bytes"], 400)
    }
    assert "sets no stories aside" not in capsys.readouterr().err
    assert evals.loss(path, corpus="test.jsonl").rows[0]["stories"] < 40
    assert "corpus test.jsonl: sets no stories aside; 0.05 of them" in capsys.readouterr().err


def test_a_file_of_such_a_name_that_was_trained_on_keeps_its_division(trained):
    Path("valid.txt").write_text("<|endoftext|>".join(TALES))
    stories = set(held_out_text(trained("valid.txt 0.3"), "valid.txt").held_out())
    assert stories == set(open_corpus("valid.txt", "valid", valid_fraction=0.3))


def test_models_that_hold_out_two_fractions_of_a_file_are_named(trained, read, capsys):
    """Figures of two texts stood under each other."""
    models = [trained("book.txt 0.1"), trained("book.txt 0.3")]
    for corpus, told in (("book.txt", True), (read("book.txt 0.1"), False), ("tales", False)):
        choose_corpus(models, corpus)
        said = capsys.readouterr().err
        assert (f"corpus {corpus}: its held-out fractions" in said) == told
        assert ("0.1 by" in said and "0.3 by" in said) == told


def test_a_few_stories_of_a_dataset_are_not_a_whole_download(trained, monkeypatch):
    from datasets import Dataset, DatasetDict

    made, streams = DatasetDict({"validation": Dataset.from_dict({"text": OTHERS})}), []
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *_, streaming: streams.append(streaming) or made
    )
    text = held_out_text(trained("book.txt 0.05"), "hub:some/tales")
    assert [len(list(text.held_out(limit))) for limit in (1, None)] == [1, 400]
    assert streams == [True, False]


def test_models_of_two_ends_of_text_are_each_asked_with_their_own(small_model):
    """The second was asked with stories joined by the first one's end."""
    tokenizer = Tokenizer.from_str(
        json.dumps({**json.loads(byte_tokenizer().to_str()), "added_tokens": []})
    )
    tokenizer.add_special_tokens(["<a>", "<b>"])
    model, models = small_model(n_layers=1), []
    for end in ("<a>", "<b>"):
        meta = {"name": "m", "end": end}
        models.append(Checkpoint(model, model.config, tokenizer, meta, Path("m")))
    shared, alone = (Design("toy:400", Question((0,)), count=2, before=2) for _ in range(2))
    _, second = map(shared.of, models)
    assert torch.equal(second.calibration, alone.of(models[1]).calibration)
    assert (second.calibration == tokenizer.token_to_id("<b>")).any()


@pytest.mark.parametrize("prefix", ["", "hub:"])
def test_rows_are_not_kept_among_the_files_of_their_corpus(read, model_directory, prefix, capsys):
    """The same command was refused when it was given again, as its rows made another text of it."""
    path, folder = model_directory(n_layers=1), Path("lines")
    folder.mkdir()
    lines = "".join(json.dumps({"text": story}) + "\n" for story in TALES)
    (folder / "tales.jsonl").write_text(lines)
    command = ["loss", str(path), "--corpus", f"{prefix}lines", "--out"]
    assert main([*command, "lines/results"]) == 2
    assert "error: --out lines/results: its rows would lie" in capsys.readouterr().err
    assert [file.name for file in folder.iterdir()] == ["tales.jsonl"]
