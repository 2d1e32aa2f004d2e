"""Wrong wishes: every command says what is wrong in one line, and writes nothing."""

import json
import shlex
import shutil
from typing import Any

import pytest
import torch

import eval as evals
from arch import save_model
from eval import RequestError
from eval.__main__ import main
from eval.lenses import stories
from eval.measures.linear import outputs_of
from eval.rows.store import Results
from eval.sites.circuit import Circuit
from tests.arch.cases import byte_tokenizer
from tests.eval.lenses.cases import look, story_checkpoint
from tests.eval.views.compare_cases import make_run
from tests.eval.views.page.cases import make_row
from tests.said import one_line
from tokenizer import open_corpus, train_tokenizer

REFUSED = {
    "invert model --out out --count 2 --length 6": [
        ("--layers 1+9", "--layers 9"),
        ("--layers first", "--layers first"),
        ("--parts heads", "part 'heads'"),
        ("--parts mixer --layers 0", "part 'mixer': layer 0"),
        ("--without bias", "--without bias"),
        ("--without mask", "--without mask: a Flat"),
        ("--slices '[:, 6:, :]'", "[:, 6:, :] shows nothing"),
        ("--solvers magic", "solver magic"),
        ("--solvers sweep --slices '[:, 1:, :]'", "no solver asked for fits (sweep"),
        ("--set adam.steps=5", "--set: needs --solvers"),
        ("--solvers adam --set steps=5", "--set steps=5"),
        ("--solvers sweep --set adam.steps=5", "with SOLVER one of sweep"),
        ("--solvers adam --set adam.speed=5", "solver adam has no setting 'speed'"),
        ("--solvers adam --set adam.steps=1.5", "setting steps: 1.5 is not int"),
        ("--solvers adam --set adam.steps=0", "setting steps: 0 must be above 0"),
        ("--solvers descent --set descent.rate=inf", "setting rate: inf must be above 0"),
        ("--seeds 9223372036854775808", "--seeds: '9223372036854775808'"),
        ("--solvers descent --set descent.objective=fit", "objective: 'fit'"),
        ("--noise -1 --solvers sweep", "--noise: -1.0"),
        ("--length 33 --count 9999", "--length 33: the context of model is 32"),
        ("--corpus nowhere.txt", "nowhere.txt"),
        ("--corpus toy:40 --count 9", "different beginnings of 6 tokens"),
        ("--device tpu", "--device tpu"),
        ("--controls magic", "--controls magic"),
        ("--controls shuffled --count 1", "--controls shuffled: no two prompts of 6"),
        ("--pad-to 4", "--pad-to 4: a prompt has 6 tokens"),
        ("--allowed '' --solvers adam", "--allowed ''"),
        ("--suite nosuch", "--suite nosuch"),
        ("--shard 3/2", "--shard 3/2: give I/N"),
        ("--layer 1", "--layer: there is no such flag; did you mean --layers?"),
        ("--batch_size 2", "--batch_size: there is no such flag; did you mean --batch?"),
        ("--data x", "--data: there is no such flag; did you mean --corpus?"),
        ("--layers 1 --layers 2", "--layers: given twice"),
        ("--layers", "--layers: give one at least"),
        ("--count two", "--count: 'two' is not a whole number"),
        ("--prompts tale", "--prompts: 'tale' is not one of story, inside, random"),
        ("--resume 1", "1: one word too many"),
        ("--corpus few.txt", "holds no story for valid"),
        ("--slices [:, 2:, :]", "slice '[:,' cannot be read; quote it"),
    ],
    "invert model --out out": [
        ("--controls shuffled --text 'a b' 'a b' --solvers chance", "--controls shuffled"),
        ("--controls shuffled --text 'a b' 'a c' --slices '[:, :1, :]'", "--controls shuffled"),
        ("--text '" + "word " * 40 + "'", "longer than the context * 32"),
        ("--text ''", "--text ''"),
        ("--text a --slices '[:, 1:, :]'", "[:, 1:, :] shows nothing of a prompt of 1 tokens"),
        ("--text 'a b' --count 2", "--count: is of prompts that are drawn"),
        ("--minutes 3", "--minutes: there is no such flag; see --help"),
    ],
    "probe model --out out --corpus toy:400 --length 16 --train-tokens 1600 --valid-tokens 160": [
        ("--offsets 16", "--offsets 16: windows have 16"),
        ("--train-tokens 20", "--train-tokens 20: 2 windows"),
        ("--train-tokens 10000000", "10,000,000"),
        ("--train-tokens 32 --offsets 15 --steps 0 --layers 1", "--train-tokens: 1 examples"),
    ],
    "geometry model --out out --corpus toy:200 --count 2 --length 6": [
        ("--layers 0", "--layers 0"),
        ("--hidden 6", "--hidden 6"),
    ],
    "bits model --out results": [
        ("--before 31", "--before 31 --distances 15"),
        ("--quantisers int3", "--quantisers: 'int3' is not one of bf16"),
        ("--prior model --before 0", "--prior model"),
        ("--count 40 --candidates 1 --distances 1", "passages of 14 tokens"),
        ("--part key", "Flat"),
        ("--text a --count 2", "--count: is of passages"),
        ("--candidates 9999", "--candidates 9999: the vocabulary has"),
        ("--text Zq --candidates 1 --distances 0", "--candidates 1: * --text is none of"),
    ],
    "bits": [
        ("model short --out out --distances 1 --text '" + "Tom sat. " * 3 + "'", "short is 16"),
    ],
    "lens model --out out": [
        ("--words ''", "--words ''"),
        ("--words kitten", "tokens here"),
        ("--text '" + "Tom sat. " * 20 + "'", "the context of model is 32"),
        ("--text a --count 3", "--count and --length"),
        ("--lens logt", "--lens logt: * mean logit?"),
    ],
    "compare": [
        ("nowhere", "nowhere: nothing to compare"),
        ("worded", "worded/config.yaml: optimizer is 'adamw'; give settings by name"),
        ("listed", "listed/metrics.jsonl, line 1: not a row of a run's figures"),
        ("runs/run --sort speed", "--sort speed: allowed are model, step, tokens, bits/byte"),
        ("runs/run --paired a", "--paired a: give two"),
        ("runs/run --paired a b", "--paired a: there is no such checkpoint"),
        ("runs/run --paired run@² b", "--paired run@²: there is no such checkpoint"),
        ("runs/run --plot p.gif", "--plot p.gif"),
        ("runs/run --csv file/t.csv", "file"),
        ("broken", "metrics.jsonl, line 1: not a row of a run's figures"),
        ("odd", "config.yaml: not YAML"),
        ("dated", "config.yaml: not YAML"),
        ("silent", "no rows here, and no figures of a run yet"),
        ("runs/run --sort -speed", "--sort -speed: allowed are model, step"),
        ("runs/run --sort", "--sort: give a value"),
        ("results --solver magic", "--solver magic: no recovery here has it; there are "),
        ("results --prompts tale", "--prompts tale: no recovery here has it; there are story"),
    ],
    "report --out page.html": [
        ("nowhere", "nowhere: no results here"),
        ("torn", "line 1: not a row of results"),
        ("later", "schema 99, allowed is 3"),
        ("results --figures figures", "--figures figures: no lens"),
    ],
    "report": [
        ("results --out empty", "--out empty: Is a directory; give a file"),
        ("results --out page.pdf", "--out page.pdf: the page is HTML; name it .html in place of"),
    ],
    "summary": [
        ("torn.parquet", "torn.parquet"),
        ("results --csv file/t.csv", "file"),
        ("''", "results '': the value is empty"),  # of a variable that is not set
        ("results --csv ''", "--csv '': the value is empty"),
    ],
    "generate": [
        ("model --prompt '" + "far " * 40 + "'", "the model's context is 32"),
        ("model --prompt ''", "--prompt ''"),
        ("model --temperature -1", "--temperature: '-1' is not"),
        ("model --top-p 2", "--top-p: '2' is not a number above 0 and at most 1"),
    ],
    "lenses --plugin": [
        ("none.py", "--plugin none.py: no such file"),
        ("broken.py", "--plugin broken.py: line 2: SyntaxError"),
        ("raises.py", "--plugin raises.py: line 3: KeyError: 'a'"),
        ("solver.py", "--plugin solver.py: * solver adam"),
        ("lens.py", "--plugin lens.py: lens logit: the name is taken"),
    ],
    "solvers": [("--names adamant", "--names adamant")],
    "recover": [
        ("file --model ''", "error: --model '': the value is empty"),
        ("'' --model model", "error: file '': the value is empty"),
    ],
    "explore": [
        ("empty", "no model directories; `make demo`"),
        ("model --port 99999999", "--port 99999999"),
        ("model --format json", "--format: there is no such flag"),
        ("model --host 203.0.113.7", "--host 203.0.113.7"),
    ],
    "": [("invrt model", "invrt: there is no such command; did you mean invert?")],
    "invert": [
        ("", "models: give one at least"),
        ("nowhere --out out", "nowhere: no such model directory"),
        ("empty --out out", "not a model directory: it has no model.safetensors"),
        ("foreign --out out", "the tokenizer that the model was trained with"),
        ("smaller --out out", "tokenizer.json has 400 entries, the model has 300"),
        ("cut --out out", "cut/model.safetensors"),
        ("model --out file/out", "cannot be written"),
        ("model namesake --out out --count 2", "namesake"),
    ],
    "loss": [
        ("model --out ''", "--out '': the value is empty"),
        ("trained", "trained/models/step-000010"),
        ("file", "file: is a file; give a model directory"),
        ("model --text a --corpus toy", "--corpus: is of held-out stories"),
        ("trained@7", "trained@7: there is no model of that step; steps saved: 10"),
        ("trained/checkpoints/step-000010.ckpt", "resume training from"),
        ("theirs", "hf:theirs"),
        ("weights.gguf", "hf:weights.gguf"),
    ],
}
"""By command, further words and what is said of them, ` * ` for anything."""

SUITES = [
    ("{", "not YAML"),
    ("- a", "suite.yaml: must name calls"),
    ("a: {layer: 1}", "suite.yaml, a: unknown key 'layer'"),
    ("a: {solvers: chance, noise: .nan}", "suite.yaml, a: --noise: 'nan'"),
    ("a: {solvers: chance, text: [null]}", "suite.yaml, a: --text"),
    ("a: {solvers: chance, text: no}", "suite.yaml, a: --text"),
    ("a: {solvers: chance, text: 2020-01-01}", "suite.yaml, a: --text"),
    ("a: {solvers: {chance: 1}}", "suite.yaml, a: --solvers"),
    ("a: {solvers: chance, layers: [[1]]}", "suite.yaml, a: --layers"),
    ("a: {solvers: [descent], set_: descent.rate=nan}", "setting rate: nan"),
    ("a: {solvers: chance}\na: {solvers: adam}", "a stands twice"),
    ("a: {layers: 1, layers: all, solvers: chance}", "layers stands twice"),
    ("[" * 1000, "not YAML"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, small_model, small_tokenizer):
    """A model, a run and results, and others of each that something is wrong with."""
    place = tmp_path_factory.mktemp("place")
    meta = {"name": "flat", "step": 0}
    save_model(place / "model", small_model(n_layers=1), small_tokenizer.to_str(), meta)
    other = train_tokenizer(open_corpus("toy:60:9", "train"), vocab_size=390).to_str()
    save_model(place / "short", small_model(context=16), small_tokenizer.to_str(), meta)
    save_model(place / "namesake", small_model(vocab_size=390), other, meta)
    for name in ("cut", "foreign", "smaller"):
        shutil.copytree(place / "model", place / name)
    weights = place / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for name, file, change in (
        ("foreign", "meta.json", {"tokenizer_sha256": "0" * 64}),
        ("smaller", "config.json", {"vocab_size": 300}),
    ):
        known = json.loads((place / name / file).read_text())
        (place / name / file).write_text(json.dumps(known | change))
    make_run(place, "run")
    Results(place / "results").append([make_row()])
    files = {
        "broken/metrics.jsonl": "[1]\n",
        "odd/metrics.jsonl": "",
        "odd/config.yaml": "a: [",
        "dated/metrics.jsonl": "",
        "dated/config.yaml": "seed: 2001-13-45",
        "silent/metrics.jsonl": "",
        "worded/metrics.jsonl": '{"step": 1, "val_loss": 3}\n',
        "worded/config.yaml": "optimizer: adamw",
        "listed/metrics.jsonl": '{"step": 1, "val_loss": [3]}\n',
        "torn/rows.jsonl": "{}\n",
        "later/rows.jsonl": '{"schema": 99, "key": "a"}\n',
        "empty/notes.txt": "",
        "file": "",
        "torn.parquet": "PAR1",
        "few.txt": "One.<|endoftext|>Two.<|endoftext|>Three.",
        "broken.py": "x = 1\nx +",
        "raises.py": "\n\nraise KeyError('a')",
        "solver.py": "from eval.inversion.solver import solver\n"
        "@solver('search')\ndef adam(batch, chance, tools): ...\n",
        "lens.py": "from eval.lenses.lens import lens\n@lens('logit')\ndef measure(*_): ...\n",
        "trained/models/step-000010/config.json": "",
        "trained/checkpoints/step-000010.ckpt": "",
        "theirs/config.json": '{"model_type": "llama"}',
        "weights.gguf": "",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.fixture
def refused(place, monkeypatch, capsys):
    """Asks for something wrong: the line that is said of it; exit code 2, nothing written."""
    monkeypatch.chdir(place)

    def ask(words):
        before = sorted(place.rglob("*"))
        assert main(shlex.split(words)) == 2
        *before_it, line = capsys.readouterr().err.strip().splitlines()
        assert all(said.startswith("corpus: ") for said in before_it)
        assert line.startswith("error: ")
        assert sorted(place.rglob("*")) == before
        return line

    return ask


@pytest.mark.parametrize(
    ("words", "message"),
    [(f"{command} {words}", said) for command in REFUSED for words, said in REFUSED[command]],
    ids=lambda text: text[:60],
)
def test_wrong_wishes_get_one_line(refused, words, message):
    line = refused(words)
    for part in message.split(" * "):
        assert part in line


@pytest.mark.parametrize(("text", "message"), SUITES)
def test_wrong_suites_get_one_line(refused, place, text, message):
    (place / "suite.yaml").write_text(text)
    assert message in refused("invert model --out out --suite suite.yaml")


TOKENS, LINEAR = torch.arange(6), torch.nn.Linear(2, 2)
API: Any = evals  # whatever its types allow


def broken(model: Any) -> Any:
    """A model whose last block gives numbers that are not finite."""
    model.blocks[1].norm_token.weight[0] = torch.nan
    return model


def in_memory(model: Any) -> Any:
    """Opened, with a token for each byte."""
    return API.open_model(model, tokenizer=byte_tokenizer(), name="m")


CALLS = [
    (lambda new: Circuit(new(), 3), "layer 3"),
    (lambda new: Circuit(new(mixers=("attention+flat",)), 1, without=frozenset({"mask"})),
     "has no mask to leave out"),
    (lambda new: Circuit(new(), 2).extend(TOKENS.repeat(1, 6), None), "36 positions"),
    (lambda new: look("tuned", story_checkpoint(), (40, 41), tokens=40), "--tokens 40"),
    (lambda new: look("steering", story_checkpoint(context=8), (1, 2)), "tokens, more than the "),
    (lambda new: look("attribution", story_checkpoint(), range(70)), "is 64"),
    (lambda new: look("circuits", story_checkpoint(), (3,)), "two at least"),
    (lambda new: look("detokenisation", story_checkpoint(context=3), (60, 61)), "more than 3"),
    (lambda new: stories.require_words(byte_tokenizer()), "Lily = ' ' + 'L' + 'i' + 'l' + 'y'"),
    (lambda new: outputs_of(Circuit(broken(new()), 2), TOKENS[None]), "layer 2 gives numbers that"),
    (lambda new: API.open_model(LINEAR), "tokenizer of Linear: none was given"),
    (lambda new: API.open_model(LINEAR, tokenizer="gpt2"), "tokenizer of Linear: it is a str"),
    (lambda new: API.open_model(LINEAR, tokenizer=byte_tokenizer(), name="m"),
     "m: a Linear is no causal"),
    (lambda new: API.open_model("hf:x", name="y"), "hf:x"),
    (lambda new: API.loss("model", stories=0), "--stories: '0'"),
    (lambda new: API.invert("model", prompts="stories"), "--prompts: 'stories'"),
    (lambda new: API.generate(in_memory(new(context=3)), prompt="abc"), "the model's context is 3"),
]  # fmt: skip
"""Of Python callers: a call that is given a maker of small models, and what is said of it."""


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_wrong_calls_get_one_line(call, message, small_model):
    with one_line(RequestError, message):
        call(small_model)
