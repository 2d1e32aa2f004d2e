"""E12: its runs, and its own measures where it is known what they must find."""

import copy
import fcntl
import subprocess

import numpy as np
import pytest
import torch

from arch import LanguageModel, ModelConfig
from arch.mixers import Column, Mixed, Row, Toeplitz
from eval.sites.circuit import Circuit
from scripts.experiments.shared import read_design
from scripts.experiments.structured import asking, copying, decoder, measures, training
from scripts.experiments.structured.__main__ import run_models
from train.settings import OptimizerSettings

DESIGN = read_design("e12")


@pytest.fixture
def network():
    """A toy model of two flat blocks."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=16, context=16, d_model=32, n_layers=2, mixers=("flat",))
    return LanguageModel(config)


def test_each_model_is_trained_that_has_open_questions_and_no_other_process(tmp_path, monkeypatch):
    commands = []

    def fail(command, **_):
        commands.append(command[command.index("--run") + 1].rsplit("/", 1)[1])
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(training.subprocess, "run", fail)
    stored = [
        {"key": f"{question.key} 0"}
        for family in DESIGN["models"]
        for seed in (80, 81, 82)
        for question in asking.questions(DESIGN, family, seed)
        if (question.model, question.part) != ("llama-s81", "order")
    ]
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / "mixed-s84").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = run_models(tmp_path / "data", tmp_path, DESIGN, stored)
    left = {f"{family}-s{seed}" for family in DESIGN["models"] for seed in (83, 84)}
    assert failed == commands
    assert commands[0] == "llama-s81"
    assert set(commands) == left - {"mixed-s84"} | {"llama-s81"}
    assert len(commands) == 14


@pytest.mark.parametrize("family", DESIGN["models"])
def test_the_recipe_stands_before_the_flags_that_change_it(family):
    flags = training.fit_flags(DESIGN, family)
    assert flags[0] == "--config"
    assert flags[flags.index("--model.mixers") + 1].startswith("[")
    assert flags[flags.index("--trainer.max_steps") + 1] == str(DESIGN["steps"][-1])
    assert len({flag for flag in flags if flag.startswith("--")}) == len(flags) // 2


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
def test_the_slope_of_a_spectrum_that_is_a_power_is_its_exponent(slope):
    basis = torch.linalg.qr(torch.randn(200, 80, dtype=torch.float64)).Q
    outputs = basis * torch.arange(1, 81) ** (-slope / 2)
    assert measures.spectrum_slope(outputs) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("zeros", [[2.0, 3.0], [0.5, 2.0], [0.5, -0.9, 0.2, 4.0], [0.99, -1.01]])
def test_the_winding_number_counts_the_zeros_inside_the_circle(zeros):
    weights = torch.tensor(np.polynomial.polynomial.polyfromroots(zeros))
    assert measures.winding_number(weights) == sum(abs(zero) < 1 for zero in zeros)


def test_the_figures_of_a_toeplitz_mixer_whose_inverse_is_known():
    """1 - z / 2 has its zero at 2; -1/2 + z at 1/2, and its least singular value is about 2^-L."""
    mixer = Toeplitz(8, 32)
    for first, second, winding in ((1.0, -0.5, 0), (-0.5, 1.0, 1)):
        mixer.values.data.zero_()
        mixer.values.data[..., :2] = torch.tensor([first, second])
        found = measures.toeplitz_figures(mixer)
        assert found["winding"] == winding
        assert found["w0"] == first
        assert found["largest"] <= 1.5
        assert (found["least"] > 0.4) == (winding == 0)
    assert mixer.values.dtype == torch.float32


MIXERS = {
    "column": Column(16, 12),
    "row with decay": Row(16, 12, heads=2, decay="learnt"),
    "mixed": Mixed(16, 12, heads=4, decay="learnt", projections=True),
}


@pytest.mark.parametrize("name", MIXERS)
def test_two_neighbouring_outputs_give_the_input(name):
    torch.manual_seed(0)
    mixer = MIXERS[name]
    for parameter in mixer.parameters():
        parameter.data.uniform_(0.5, 1.0)
    for projection in (mixer.in_proj, mixer.o_proj):
        for weight in projection.parameters():
            weight.data.uniform_(-1, 1)
    inputs = torch.randn(3, 12, 16, dtype=torch.float64)
    outputs = copy.deepcopy(mixer).double()(inputs).detach()
    outputs[:, :4] = 0  # what lies further back does not matter
    found, outside = measures.read_neighbours(mixer, outputs)
    torch.testing.assert_close(found[:, 5:], inputs[:, 5:])
    assert outside < 1e-9


def test_a_triangle_without_structure_has_no_such_inverse():
    torch.manual_seed(0)
    mixer = Toeplitz(8, 12, heads=2)
    for parameter in mixer.parameters():
        parameter.data.uniform_(0.5, 1.0)
    assert measures.read_neighbours(mixer, torch.randn(1, 12, 8))[1] > 1e-2


V, PLACES = 16, [3, 7, 8]
SHORT = {"batch": 64, "steps": 120, "rate": 5e-3, "decay": 0.0}


def examples(count, seed, signal):
    """Vectors with a candidate's own direction for the first distance, and for others none."""
    _, labels = decoder.draw_examples(
        torch.arange(1000) % 50, 10, count, PLACES, torch.arange(V), seed
    )
    vectors = torch.nn.functional.one_hot(labels[:, 0], V).float() * signal
    return decoder.Examples(labels, vectors, torch.zeros(count, len(PLACES), V))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blind", "informed"])
def test_a_decoder_finds_the_bits_that_are_there_and_no_others(kind):
    train, judged = examples(2048, 0, 1.0), examples(512, 1, 1.0)
    first, *others = decoder.train_decoder(train, judged, kind, 0.0, V, SHORT, 0)
    assert first == pytest.approx(4, abs=0.05)
    assert max(others) < 0.05


@pytest.mark.slow
def test_noise_hides_from_a_decoder():
    train, judged = examples(2048, 0, 1.0), examples(512, 1, 1.0)
    clean, noisy = (
        decoder.train_decoder(train, judged, "blind", noise, V, SHORT, 0)[0] for noise in (0.0, 2.0)
    )
    assert noisy < clean - 1


def test_examples_are_encoded_as_the_model_encodes_them(network):
    circuit = Circuit(network, 2)
    tokens, labels = decoder.draw_examples(torch.arange(500) % V, 10, 6, PLACES, torch.arange(V), 0)
    assert torch.equal(tokens[:, PLACES], labels)
    vectors, neutral = decoder.encode(circuit, tokens, PLACES, 0, batch=4)
    torch.testing.assert_close(vectors, circuit.of_tokens(tokens)[:, -1])
    torch.testing.assert_close(decoder.encode(circuit, tokens, (), 0)[0], vectors)
    for number, place in enumerate(PLACES):
        other = tokens.clone()
        other[:, place] = 0
        torch.testing.assert_close(neutral[:, number], circuit.of_tokens(other)[:, -1])


def test_copying_counts_what_the_second_half_names():
    tokens = copying.draw_copies(4, 8, V, torch.Generator().manual_seed(0))
    assert torch.equal(tokens[:, :8], tokens[:, 8:])

    def copier(given):
        return torch.nn.functional.one_hot(given.roll(7, 1), V).float() * 50

    loss, right = copying.score_copies(copier, tokens)
    assert right == 1
    assert loss < 1e-3
    assert copying.score_copies(lambda given: copier(given + 1), (tokens % 8))[1] < 0.5


def test_a_model_learns_to_copy(network):
    settings = OptimizerSettings(lr=1e-2)
    found = [*copying.learn_copying(network.config, settings, [5, 60], 0, windows=32, warmup=5)]
    assert [step for step, *_ in found] == [5, 60]
    assert found[1][1] < found[0][1]
