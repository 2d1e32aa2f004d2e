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
from eval.circuit import Circuit
from eval.probes.local import local_geometry
from eval.rows import Results
from tests.arch.cases import byte_tokenizer
from tests.eval.compare_cases import make_run
from tests.eval.lenses.cases import look, story_checkpoint
from tests.eval.report.cases import make_row
from tokenizer import open_corpus, pack, train_tokenizer

REFUSED = {
    "invert model --out out --count 2 --length 6": [
        ("--layers 3", "--layers 3: model has layers 0 (the embedding) to 2"),
        ("--layers 1+9", "--layers 9: model has layers 0 (the embedding) to 2"),
        ("--layers first", "--layers first: must be all, last, or numbers, as in 1 4 1+4"),
        ("--parts heads", "part 'heads' does not exist; use one of block, mixer, stream"),
        ("--without bias", "--without bias: nothing of that name; use some of residual, norms"),
        ("--without mask", "--without mask: a Flat has no mask to leave out; only attention has"),
        ("--slices '[2:]'", "slice '[2:]' cannot be read; allowed:"),
        ("--slices '[:, 6:, :]'", "slice [:, 6:, :] shows nothing of a prompt of 6 tokens"),
        ("--slices '[:, 6:, :]' --methods adam", "shows nothing of a prompt of 6 tokens"),
        ("--slices '[:, :, 40:]'", "shows 0 of a site's 32 channels; give bounds within 32"),
        ("--methods magic", "method magic: there is no such method; use descent, adam"),
        ("--methods sweep --slices '[:, 1:, :]'", "no method asked for fits (sweep needs eve"),
        ("--methods alternating --slices '[:, 0:, :]'", "needs 1 or more positions hidden"),
        ("--set adam.steps=5", "--set: needs --methods"),
        ("--methods adam --set steps=5", "--set steps=5: must be METHOD.NAME=VALUE"),
        ("--methods sweep --set adam.steps=5", "with METHOD one of sweep"),
        ("--methods adam --set adam.speed=5", "method adam has no setting 'speed'; it has"),
        ("--methods adam --set adam.steps=many", "setting steps: 'many' is not int"),
        ("--methods adam --set adam.steps=1.5", "setting steps: 1.5 is not int"),
        ("--methods adam --set adam.steps=0", "setting steps: 0 must be above 0"),
        ("--methods descent --set descent.sequential=1", "setting sequential: 1 is not bool"),
        ("--methods adam --set adam.objective=fit", "setting objective: 'fit' does not exist"),
        ("--methods adam --set adam.variable=fit", "setting variable: 'fit' does not exist"),
        ("--noise -1 --methods sweep", "--noise: '-1'"),
        ("--text '" + "word " * 40 + "'", "is longer than the context of * 32; shorten --text"),
        ("--text ''", "--text '': there is nothing to recover; give some text"),
        ("--length 33 --count 9999", "--length 33: the context of model is 32; give a shorter"),
        ("--corpus nowhere.txt", "nowhere.txt: no such file"),
        ("--corpus toy:40 --count 9", "different beginnings of 6 tokens for evaluation"),
        ("--device tpu", "--device tpu: allowed are cpu, cuda and auto"),
        ("--controls magic", "--controls magic: allowed are shuffled, identity, scale=NUMBER"),
        ("--controls scale=x", "--controls scale=x: allowed are shuffled"),
        ("--controls embedding=nowhere", "nowhere: no such model directory"),
        ("--controls shuffled --count 1", "--controls shuffled: only one prompt of 6"),
        ("--pad-to 4", "--pad-to 4: a prompt has 6 tokens; give at least as many"),
        ("--pad-to 64", "a prompt of 64 tokens is longer than the context"),
        ("--allowed '' --methods adam", "--allowed '': there is no token in it"),
        ("--suite nosuch", "--suite nosuch: no such suite or file; use quick, sources"),
        ("--limit 0", "argument --limit: '0' is not a whole number of at least 1"),
        ("--count x", "argument --count: 'x' is not a whole number of at least 1"),
        ("--seeds -1", "argument --seeds: '-1' is not a whole number of at least 0"),
        ("--corpus other", "other: packed with another tokenizer than the model's; give the"),
        ("--corpus few.txt", "holds no story for valid; at least two stories are needed:"),
        ("--corpus thin --count 1 --length 4", "for background have 0 tokens, 256 are asked for"),
        ("--slices [:, 2:, :]", "slice '[:,' cannot be read; quote it; allowed: "),
    ],
    "probe model --out out --corpus toy:400 --length 16 --train-tokens 1600 --valid-tokens 160": [
        ("--layers 3", "--layers 3: model has layers 0 (the embedding) to 2"),
        ("--offsets 16", "--offsets 16: windows have 16 tokens; give an offset within them"),
        ("--length 40", "--length 40: the context of * is 32; give a shorter one"),
        ("--train-tokens 20", "--train-tokens 20: 2 windows of 16 tokens are needed at least"),
        ("--train-tokens 10000000", "10,000,000 are asked for; ask for fewer"),
        ("--corpus none", "none: no such file or directory"),
        ("--device tpu", "--device tpu: allowed are cpu, cuda and auto"),
        ("--rate -1", "argument --rate: "),
        ("--steps -1", "argument --steps: "),
    ],
    "geometry model --out out --corpus toy:200 --count 2 --length 6": [
        ("--layers 3", "has layers 0 (the embedding) to 2"),
        ("--layers 0", "--layers 0: an embedding shows nothing of other positions"),
        ("--hidden 6", "--hidden 6: a prompt of 6 tokens can hide 1 to 5"),
        ("--count 9999", "--count 9999: the corpus toy:200 has"),
        ("--length 40", "--length 40: the context of"),
    ],
    "bits model --out results": [
        ("--layers 3", "--layers 3: "),
        ("--before 31", "--before 31 --distances 15: passages of 47 tokens, the context of "),
        ("--count 99999", "--count 99999 --skip 0: the corpus toy has "),
        ("--quantisers int3", "invalid choice: 'int3'"),
        ("--prior model --before 0", "--prior model: no model predicts a first token"),
        ("--noise 0", "argument --noise: '0' is not a number above 0"),
        ("--candidates 1 --distances 1", "passages of 14 tokens for evaluation whose"),
    ],
    "lens model --out out": [
        ("--words ''", "--words '': there is no token in it; give a word"),
        ("--text '" + "Tom sat. " * 20 + "'", "the context of model is 32: give a shorter"),
        ("--length 33", "--length 33: the context of model is 32; give a shorter one"),
        ("--text a --count 3", "--count and --length are of stories; leave them out"),
        ("--lens logt", "--lens logt: no lens of that name; did you mean logit? use all or"),
        ("--lens xyz", "--lens xyz: no lens of that name; use all or some of residual, logit"),
        ("--text ''", "--text '': there is nothing to recover; give some text"),
        ("--corpus nowhere", "nowhere"),
    ],
    "compare": [
        ("nowhere", "nowhere: nothing to compare here; give a model directory, a run, results, or"),
        ("runs/run --sort speed", "--sort speed: there is no such column; there are: "),
        ("runs/run --sort nats", "--sort nats: fits 2 columns; there are: "),
        ("runs/run --columns x*", "--columns x*: fits none of"),
        ("runs/run --plot p.gif", "--plot p.gif: must end in .svg or .png or .html"),
        ("runs/run --plot p.svg --columns tokens", "--plot p.svg: nothing was measured"),
        ("runs/run --csv file/t.csv", "file"),
        ("broken", "metrics.jsonl, line 1: not a row of a run's figures"),
        ("odd", "config.yaml: not YAML of settings; is it the config of a run?"),
        ("silent", "its runs have not reported anything yet"),
        ("torn", "rows.jsonl, line 1: not a row of results"),
        ("cut", "cut/model.safetensors cannot be read: "),
    ],
    "report --out page.html": [
        ("nowhere", "nowhere: no results here"),
        ("torn", "line 1: not a row of results; delete that line and run the eval again"),
        ("later", "schema 99, allowed is 2; run the eval anew"),
    ],
    "summary": [
        ("empty", "error: empty: no results here"),
        ("torn.parquet", "torn.parquet: no Parquet file of rows ("),
        ("results --csv file/t.csv", "file"),
    ],
    "generate": [
        ("model --prompt '" + "far " * 40 + "'", "the model's context is 32; shorten it"),
        ("cut --prompt Tom", "cut/model.safetensors cannot be read: "),
    ],
    "lenses --plugin": [
        ("none.py", "--plugin none.py: no such file; give a Python file (NAME.py)"),
        ("notes.txt", "--plugin notes.txt: no such file; give a Python file (NAME.py)"),
        ("broken.py", "--plugin broken.py: line 2: SyntaxError: invalid syntax"),
        ("raises.py", "--plugin raises.py: line 3: KeyError: 'a'"),
        ("imports.py", "--plugin imports.py: * ModuleNotFoundError: No module named"),
        ("solver.py", "--plugin solver.py: * solver adam: there is one of that name"),
    ],
    "solvers": [("--names adamant", "--names adamant: there is no such solver; use descent, ")],
    **{
        f"{command} --corpus toy --out out": [("cut", "cut/model.safetensors cannot be read: ")]
        for command in ("loss", "probe", "geometry", "lens")
    },
    "invert": [
        ("nowhere --out out", "nowhere: no such model directory"),
        ("empty --out out", "not a model directory: it has no model.safetensors"),
        ("cut --out out", "cut/model.safetensors cannot be read: "),
        ("foreign --out out", "use the tokenizer that the model was trained with"),
        ("smaller --out out", "tokenizer.json has 400 entries, the model has 300"),
        ("model --out file/out", "cannot be written"),
        ("model namesake --out out --count 2", "namesake: another model is named flat too"),
    ],
    "loss": [
        ("trained", "trained: is a run; give a model directory, as in trained/models/step-000010"),
        ("trained/models", "is a run; give a model directory, as in trained/models/step-000010"),
        ("trained/checkpoints/step-000010.ckpt", "resume training from; give a model directory, as"
         " in trained/models/step-000010"),
        ("theirs", "theirs: has the layout of transformers; give hf:theirs"),
        ("weights.gguf", "weights.gguf: is a GGUF file; give hf:weights.gguf"),
    ],
}  # fmt: skip
"""By command, further words and what is said of them, ` * ` for anything."""

SUITES = [
    ("{", "not YAML"),
    ("- a", "suite.yaml: must name calls"),
    ("a: 5", "suite.yaml: must name calls"),
    ("a: {layer: 1}", "suite.yaml, a: unknown key 'layer'"),
    ("a: {layers: first, methods: chance}", "--layers first"),
    ("a: {layers: last}", "--methods"),
    ("a: {methods: chance, count: 0}", "suite.yaml, a: --count: 0"),
    ("a: {methods: chance, noise: .nan}", "suite.yaml, a: --noise: nan"),
    ("a: {methods: chance, prompts: tale}", "suite.yaml, a: --prompts tale"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, small_model, small_tokenizer):
    """A model, a run and results, and others of each that something is wrong with."""
    place = tmp_path_factory.mktemp("place")
    meta = {"name": "flat", "step": 0}
    save_model(place / "model", small_model(), small_tokenizer.to_str(), meta)
    other = train_tokenizer(open_corpus("toy:60:9", "train"), vocab_size=390).to_str()
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
        "silent/metrics.jsonl": "",
        "torn/rows.jsonl": "{}\n",
        "later/rows.jsonl": '{"schema": 99, "key": "a"}\n',
        "empty/notes.txt": "",
        "file": "",
        "torn.parquet": "PAR1",
        "few.txt": "One.<|endoftext|>Two.<|endoftext|>Three.",
        "notes.txt": "",
        "broken.py": "x = 1\nx +",
        "raises.py": "\n\nraise KeyError('a')",
        "imports.py": "import nothing_of_the_kind",
        "solver.py": "from eval.inversion.solvers import solver\n"
        "@solver('search')\ndef adam(batch, chance, tools): ...\n",
        "thin/valid.txt": "<|endoftext|>".join(["Tom had a red ball and a dog."] * 4),
        "other.json": other,
        "trained/models/step-000010/config.json": "",
        "trained/checkpoints/step-000010.ckpt": "",
        "theirs/config.json": '{"model_type": "llama"}',
        "weights.gguf": "",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    pack("toy:60", place / "other.json", place / "other")
    return place


@pytest.fixture
def refused(place, monkeypatch, capsys):
    """Asks for something wrong: the line that is said of it; exit code 2, nothing written."""
    monkeypatch.chdir(place)

    def ask(words):
        before = sorted(place.rglob("*"))
        try:
            code = main(shlex.split(words))
        except SystemExit as end:  # argparse says its usage too
            code = end.code
        assert code == 2
        *usage, line = capsys.readouterr().err.strip().splitlines()
        usage = [said for said in usage if not said.startswith("corpus: ")]
        assert "error: " in line
        assert not usage or usage[0].startswith("usage: ")
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
CALLS = [
    (lambda new: Circuit(new(), 3), "layer 3 does not exist; allowed: 0 (the embedding) to 2"),
    (lambda new: Circuit(new(), -1), "layer -1 does not exist"),
    (lambda new: Circuit(new(), (1, 5)), "layer 5 does not exist"),
    *((lambda new, mixer=mixer: Circuit(new(mixers=(mixer,)), 1, without=frozenset({"mask"})),
       "has no mask to leave out; only attention has") for mixer in ("flat", "attention+flat")),
    (lambda new: Circuit(new(), 2).extend(TOKENS.repeat(1, 6), None),
     "36 positions are longer than the model's context of 32"),
    (lambda new: local_geometry(Circuit(new(), 1), TOKENS, 0),
     "--hidden 0: a prompt of 6 tokens can hide"),
    (lambda new: look("tuned", story_checkpoint(), (40, 41), tokens=40),
     "--tokens 40: the tuned lens needs 128 at least"),
    (lambda new: look("steering", story_checkpoint(context=8), (1, 2)), "tokens, more than the "),
    (lambda new: API.open_model(LINEAR), "tokenizer of Linear: none was given"),
    (lambda new: API.open_model(LINEAR, tokenizer="gpt2"), "tokenizer of Linear: it is a str"),
    (lambda new: API.open_model(LINEAR, tokenizer=byte_tokenizer(), name="m"),
     "m: a Linear is no causal"),
    (lambda new: API.open_model("hf:x", name="y"), "hf:x: has a tokenizer and a name of its own"),
    (lambda new: API.loss(LINEAR), "none was given"),
    (lambda new: API.loss("model", stories=0),
     "--stories: 0 is not a whole number of at least 1"),
    (lambda new: API.loss("model", batch_size=1.5),
     "--batch-size: 1.5 is not a whole number of at least 1"),
    (lambda new: API.invert("model", prompts="stories"),
     "--prompts stories: allowed are story, inside, random"),
]  # fmt: skip
"""Of Python callers: a call that is given a maker of small models, and what is said of it."""


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_wrong_calls_get_one_line(call, message, small_model):
    with pytest.raises(RequestError) as caught:
        call(small_model)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
