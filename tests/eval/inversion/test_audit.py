"""The command `recover`: from a file of captured tensors to the text, and what it refuses."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eval.__main__ import main
from tests.eval.inversion.test_recover import TEXTS, directories  # noqa: F401


@pytest.fixture
def asked(directories, tmp_path, capsys):  # noqa: F811
    """Runs the command on tensors; its exit code, its rows, and what it said on stderr."""
    path = directories["llama"]

    def ask(tensors: dict[str, torch.Tensor], *words: str) -> tuple[int, Any, str]:
        save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "c.safetensors")
        command = ["recover", str(tmp_path / "c.safetensors"), "--model", f"hf:{path}"]
        code = main([*command, "--corpus", "toy:400", "--format", "json", *words])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err.strip()

    return ask, load_file(f"{path}/states.safetensors")


def test_a_file_gives_the_texts_with_their_certificates(asked):
    ask, states = asked
    scale = states["1"].abs().amax(dim=(0, 1)) / 127
    tensors = {
        "states": states["2"].bfloat16(),  # its site is found
        "block.1": (states["1"] / scale).round().to(torch.int8),
        "block.1.scale": scale,
    }
    code, rows, _ = ask(tensors, "--truth", *TEXTS)
    assert code == 0
    assert [row["tensor"] for row in rows] == ["block.1"] * 2 + ["states"] * 2
    assert [row["site"] for row in rows] == ["block.1"] * 2 + ["block.2"] * 2
    assert [row["format"] for row in rows] == ["int8"] * 2 + ["bf16"] * 2
    for row in rows[2:]:
        assert row["text"] in TEXTS
        assert row["right"] == 20
    for row in rows:
        assert row["right"] + row["named"] == 20
        assert row["false_certain"] == 0
        assert max(row["residual_over_floor"].values()) < 3


def test_only_some_positions_are_known(asked):
    ask, states = asked
    outputs = states["1"].clone()
    outputs[:, 3] = torch.nan
    known = [str(t) for t in range(12) if t != 3]
    code, rows, _ = ask({"block.1": outputs}, "--positions", *known)
    assert code == 0
    assert [row["text"] for row in rows] == [text[:12] for text in TEXTS]
    assert rows[0]["solver"] == "alternating"


@pytest.mark.parametrize(
    ("change", "words", "seen"),
    [
        (lambda x: x.mT, [], "transposed"),
        (lambda x: x.clone().fill_(torch.nan), [], "not finite"),
        (lambda x: x.to(torch.int8), [], "without a scale"),
        (lambda x: x.to(torch.int32), [], "int32"),
        (lambda x: x, ["--positions", "3", "99"], "0 to 19"),
        (lambda x: x, ["--tensor", "other"], "block.1"),
        (lambda x: x, ["--truth", "one"], "one for each"),
        (lambda x: x[0, 0], [], "(T, width)"),
    ],
)
def test_what_cannot_be_read_is_one_line(asked, change, words, seen):
    ask, states = asked
    code, rows, said = ask({"block.1": change(states["1"])}, *words)
    assert (code, rows) == (2, None)
    last = said.splitlines()[-1]
    assert last.startswith("error: ")
    assert seen in last
