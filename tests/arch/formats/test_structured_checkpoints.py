"""Checkpoints of structured mixers, against a plain restatement of what the authors' code computes.

There a matrix M over positions stands on the right of features `(B, E, T)`, and a block mixes
features first.
"""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from arch import ModelError, import_reference, load_model, save_model
from arch.__main__ import main
from tests.arch.cases import tokenizer_json
from tests.said import one_line

V, D, N = 11, 8, 2
SHORT, LONG = 12, 1024
"""Contexts; a decay's constant is 2 in the longer one."""


class Matrix(nn.Module):
    """One head: rows of numbers, of which a matrix is made, and a bias for each position."""

    def __init__(self, kind, length, taps=1, decay=False):
        super().__init__()
        self.kind, self.taps = kind, taps
        self.weight = nn.Parameter(torch.randn(taps, length))
        self.bias = nn.Parameter(torch.randn(length))
        if decay:
            self.decay_value = nn.Parameter(torch.linspace(0.85, 0.97, min(taps, 2))[:, None])

    def matrix(self, numbers, kind, rate, constant, bracket=False):
        length = len(numbers)
        i, j = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
        made = numbers[{"row": i, "column": j, "toeplitz": (j - i).clamp(min=0)}[kind]]
        if rate is not None:
            power = (j - i).clamp(min=0)
            base = rate.clip(0.9, 1.0)
            made = made * (base**power / constant if bracket else base ** (power / constant))
        return made.where(j >= i, torch.zeros(()))

    def forward(self, x):
        length = self.weight.shape[1]
        rates = getattr(self, "decay_value", None)
        constant = length // (256 if self.taps > 1 and self.kind != "combined" else 512)
        if self.kind == "combined":
            rates = [None, None] if rates is None else rates
            made = self.matrix(self.weight[0], "row", rates[0], constant, rates[0] is not None)
            return (
                x @ (made + self.matrix(self.weight[1], "column", rates[1], constant)) + self.bias
            )
        rate = None if rates is None else rates[-1]
        pad = self.taps - 1
        padded = nn.functional.pad(x, (0, 0, pad, pad))
        return self.bias + sum(
            padded[:, k : k + x.shape[1]] @ self.matrix(numbers, self.kind, rate, constant)
            for k, numbers in enumerate(self.weight)
        )


class Heads(nn.Module):
    """Heads side by side, each with a projection of its own, or a slice of the features."""

    def __init__(self, heads, projected):
        super().__init__()
        self.mixer_heads = nn.ModuleList(heads)
        if projected:
            width = D // len(heads)
            self.proj_head = nn.ModuleList(nn.Linear(D, width) for _ in heads)
            self.out_proj = nn.Linear(D, D)

    def forward(self, x):
        parts = x.chunk(len(self.mixer_heads), 1)
        if hasattr(self, "out_proj"):
            parts = [read(x.mT).mT for read in self.proj_head]
        y = torch.cat([h(part) for h, part in zip(self.mixer_heads, parts, strict=True)], 1)
        return self.out_proj(y.mT).mT if hasattr(self, "out_proj") else y


class Block(nn.Module):
    def __init__(self, mixer, dropout):
        super().__init__()
        between = [nn.Dropout(0.0)] if dropout else []
        self.channel_norm, self.token_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.channel_mixing_layer = nn.Sequential(
            nn.Linear(D, 2 * D), nn.SiLU(), *between, nn.Linear(2 * D, D)
        )
        self.token_mixing_layer = mixer

    def forward(self, x):
        x = x + self.channel_mixing_layer(self.channel_norm(x))
        return x + self.token_mixing_layer(self.token_norm(x).mT).mT


class Theirs(nn.Module):
    def __init__(self, make, dropout=False):
        super().__init__()
        self.input_layer = nn.Embedding(V, D)
        self.mixer_blocks = nn.ModuleList(Block(make(), dropout) for _ in range(N))
        self.output_layer = nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        x = self.input_layer(tokens)
        for block in self.mixer_blocks:
            x = block(x)
        return self.output_layer(x)


def mixed(length, decay=False, projected=True):
    kinds = "column", "column", "row", "row"
    return Heads([Matrix(kind, length, decay=decay) for kind in kinds], projected)


CASES = {
    "row": (lambda: Matrix("row", SHORT), "row"),
    "row with decay": (lambda: Matrix("row", LONG, decay=True), "row"),
    "column": (lambda: Matrix("column", SHORT), "column"),
    "column of three taps": (lambda: Matrix("column", SHORT, 3), "column"),
    "column of two taps, decay": (lambda: Matrix("column", LONG, 2, True), "column"),
    "toeplitz": (lambda: Matrix("toeplitz", SHORT), "toeplitz"),
    "toeplitz of two taps": (lambda: Matrix("toeplitz", SHORT, 2), "toeplitz"),
    "toeplitz heads": (
        lambda: Heads([Matrix("toeplitz", SHORT) for _ in range(2)], True), "toeplitz"
    ),
    "column heads": (lambda: Heads([Matrix("column", SHORT) for _ in range(2)], False), "column"),
    "combined heads": (
        lambda: Heads([Matrix("combined", SHORT, 2) for _ in range(2)], True), "combined"
    ),
    "combined heads with decay": (
        lambda: Heads([Matrix("combined", LONG, 2, True) for _ in range(2)], True), "combined"
    ),
    "mixed": (lambda: mixed(SHORT), "mixed"),
    "mixed with decay": (lambda: mixed(LONG, True), "mixed"),
    "mixed slices": (lambda: mixed(SHORT, projected=False), "mixed"),
}  # fmt: skip


def saved(model, path):
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path)
    return path


@pytest.mark.first(14)
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_imported_checkpoint_computes_what_the_authors_code_does(case, dropout, tmp_path):
    make, mixer = CASES[case]
    theirs = Theirs(make, dropout)
    ours = import_reference(saved(theirs, tmp_path / "model.safetensors"), mixer)
    assert ours.config.mixers[1].startswith(mixer)
    assert len(ours.blocks) == N + 1
    tokens = torch.randint(V, (2, ours.config.context))
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(tokens[:, :5]), ours(tokens)[:, :5], rtol=1e-4, atol=1e-4)
    save_model(tmp_path / "m", ours, tokenizer_json(V), {})
    assert torch.equal(load_model(tmp_path / "m").model(tokens), ours(tokens))


def changed(**tensors):
    def change(held):
        for name, tensor in tensors.items():
            held[name.replace("__", ".")] = tensor
        return held

    return change


FIRST = "mixer_blocks__0__token_mixing_layer__"
HEAD = "mixer_blocks.0.token_mixing_layer.mixer_heads."
ODD = {
    "not told": (lambda held: held, None, "--mixer is missing"),
    "another kind": (lambda held: held, "combined", "combined has K = 2"),
    "an odd number of heads": (
        lambda held: {k: t for k, t in held.items() if "3." not in k.split("layer.")[-1]},
        "mixed", "heads in pairs",
    ),
    "a decay of Toeplitz heads": (
        lambda held: held | {f"mixer_blocks.{b}.token_mixing_layer.mixer_heads.{h}.decay_value":
                             torch.ones(1) for b in range(N) for h in range(4)},
        "toeplitz", "no decay",
    ),
    "heads of one module": (changed(**{FIRST + "mixer_heads__weight": torch.ones(4, 3)}), "mixed",
                            "one module"),
    "a head without a bias": (
        lambda held: {k: t for k, t in held.items() if not k.endswith("heads.1.bias")}, "mixed",
        "allowed",
    ),
    "no outward projection": (
        lambda held: {k: t for k, t in held.items() if "out_proj" not in k}, "mixed", "out_proj",
    ),
    "a projection of another shape": (
        changed(**{FIRST + "proj_head__1__weight": torch.ones(3, 3)}), "mixed", "proj_head",
    ),
    "a number for a weight": (
        changed(**{FIRST + "mixer_heads__0__weight": torch.ones(())}), "mixed", "allowed",
    ),
    "two decays in a row": (
        lambda held: held | {f"mixer_blocks.{b}.token_mixing_layer.mixer_heads.{h}.decay_value":
                             torch.ones(2, 1) for b in range(N) for h in range(4)},
        "mixed", "decay_value of 1",
    ),
    "a block that is missing": (
        lambda held: {k: t for k, t in held.items() if not k.startswith("mixer_blocks.0.")},
        "mixed", "mixer_blocks.0",
    ),
    "two last layers": (
        changed(mixer_blocks__0__channel_mixing_layer__3__bias=torch.ones(D)), "mixed", "twice",
    ),
    "a name of another": (changed(mixer_blocks__0__other=torch.ones(1)), "mixed", "other"),
    "an embedding of one axis": (changed(input_layer__weight=torch.ones(5)), "mixed", "matrices"),
    "integers in one head": (
        lambda held: held | {HEAD + "0.weight": held[HEAD + "0.weight"].to(torch.int8)},
        "mixed", "is of type int8; allowed",
    ),
    "eight bits in one head": (
        lambda held: held | {HEAD + "0.weight": held[HEAD + "0.weight"].to(torch.float8_e5m2)},
        "mixed", "is of type float8_e5m2; allowed",
    ),
    "a block's number in two forms": (
        lambda held: held | {HEAD.replace("0", "00") + "0.bias": torch.ones(SHORT)},
        "mixed", "unknown mixer_blocks.00",
    ),
    "a head's number in two forms": (
        lambda held: held | {HEAD + "00.bias": torch.ones(SHORT)}, "mixed", "heads.00.bias",
    ),
    "a block of 5,000 digits": (
        lambda held: held | {f"mixer_blocks.{'9' * 5000}.token_norm.weight": torch.ones(D)},
        "mixed", "unknown blocks.999",
    ),
    "a name of ours": (
        lambda held: held | {"blocks.0.token_mixer.parts.0.values": torch.ones(1, 1, SHORT)},
        "mixed", "unknown blocks.0.token_mixer.parts.0.values",
    ),
    "no vocabulary": (
        changed(input_layer__weight=torch.ones(0, D), output_layer__weight=torch.ones(0, D)),
        "mixed", "odd.pt: vocab_size is 0",
    ),
    "a number that is none": (
        changed(output_layer__weight=torch.full((V, D), torch.nan)), "mixed", "head",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_what_is_another_model_is_refused_in_one_line(case, tmp_path):
    change, mixer, said = ODD[case]
    torch.save(change(dict(Theirs(lambda: mixed(SHORT)).state_dict())), tmp_path / "odd.pt")
    with one_line(ModelError, said):
        import_reference(tmp_path / "odd.pt", mixer)


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "module._orig_mod."])
@pytest.mark.parametrize("twice", [False, True])
def test_a_tied_head_held_once_or_twice_compiled_or_in_parallel(twice, prefix, tmp_path):
    theirs = Theirs(lambda: mixed(SHORT))
    theirs.output_layer.weight = theirs.input_layer.weight
    held = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
    if not twice:
        del held[prefix + "output_layer.weight"]
    torch.save(held, tmp_path / "tied.pt")
    ours, tokens = import_reference(tmp_path / "tied.pt", "mixed"), torch.randint(V, (2, SHORT))
    assert ours.config.tied
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-4, atol=1e-4)
    save_model(tmp_path / "m", ours, tokenizer_json(V), {})
    assert torch.equal(load_model(tmp_path / "m").model(tokens), ours(tokens))


def test_a_short_context_with_decay(tmp_path):
    torch.save(Theirs(lambda: mixed(SHORT, decay=True)).state_dict(), tmp_path / "short.pt")
    with one_line(ModelError, "context of 512 or more"):
        import_reference(tmp_path / "short.pt", "mixed")


def test_the_command_needs_to_be_told(tmp_path, capsys):
    path = saved(Theirs(lambda: mixed(LONG, True)), tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(V))
    words = ["import", str(path), str(tmp_path / "out"), "--tokenizer",
             str(tmp_path / "tokenizer.json")]  # fmt: skip
    assert main(words) == 2
    assert "--mixer is missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, "--mixer", "mixed"]) == 0
    assert "context // 512" in capsys.readouterr().out
    assert load_model(tmp_path / "out").model.config.n_layers == N + 1
    words[1:3] = [str(tmp_path / "out"), str(tmp_path / "again")]
    assert main(words) == 2
    assert "--tokenizer" in capsys.readouterr().err
    assert main([*words[:3], "--mixer", "row"]) == 2
    assert "--mixer row" in capsys.readouterr().err
