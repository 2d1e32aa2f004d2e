"""A model of transformers with what an engine sees of it, and the command on files of that."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from eval import RequestError
from eval.__main__ import main
from eval.captured.files.recognise import read_capture
from eval.captured.files.stored import read_stored
from tests.arch.cases import byte_tokenizer
from tests.eval.inversion.search_cases import TEXTS


class Engine(NamedTuple):
    """A model, and what it computed of a text of 20 tokens; keys and values `(T, heads, width)`."""

    model: str
    text: str
    ids: Tensor
    states: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


@pytest.fixture(scope="session")
def engine(directories) -> Engine:
    path = directories["llama"]
    ids = torch.tensor([byte_tokenizer().encode(TEXTS[0]).ids])
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(path)
        said = theirs(ids, output_hidden_states=True, use_cache=True)
    keys, values = (
        [getattr(layer, name)[0].transpose(0, 1) for layer in said.past_key_values.layers]
        for name in ("keys", "values")
    )
    states = [state[0] for state in said.hidden_states[:-1]]
    return Engine(f"hf:{path}", TEXTS[0], ids[0], states, keys, values)


@pytest.fixture
def ask(engine, opened_once, capsys) -> Callable[..., tuple[int, Any, str]]:
    """Runs the command on a file: its exit code, its rows, what it said on stderr."""

    def ask(path: Path, *words: str, model: str = "") -> tuple[int, Any, str]:
        command = ["recover", str(path), "--model", model or engine.model, "--corpus", "toy:400"]
        code = main([*command, "--format", "json", *words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, json.loads(said.out) if said.out else None, said.err.strip()

    return ask


@pytest.fixture
def fuzz() -> Callable[..., int]:
    """Cuts a file and flips its bytes: it is read, or refused in one line; how often refused."""

    def fuzz(path: Path, trials: int = 60, of: Path | None = None, **given: Any) -> int:
        chance, whole, refused = random.Random(0), path.read_bytes(), list[str]()
        for number in range(trials):
            mutant = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(min(len(mutant), 300) if number % 2 else len(mutant))
                mutant[at] = chance.choice([0, 255, 40, 123, chance.randrange(256)])
            del mutant[chance.choice([len(mutant), len(mutant), chance.randrange(len(mutant))]) :]
            path.write_bytes(mutant)
            try:
                for outputs in read_capture(of or path, **given).outputs.values():
                    raw = outputs.read()
                    assert tuple(raw.outputs.shape) == outputs.outputs.shape
                    read_stored(raw.outputs, scale=raw.scale, zero_point=raw.zero_point)
            except RequestError as error:
                refused.append(str(error))
        path.write_bytes(whole)
        assert not any("\n" in line for line in refused)
        return len(refused)

    return fuzz
