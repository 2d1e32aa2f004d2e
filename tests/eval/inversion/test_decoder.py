"""The solver `decoder`: what its decoder learns, and the search that starts from it."""

from dataclasses import replace

import pytest
import torch

from eval.inversion.solvers.decoder.network import open_decoder, train_decoder, write_text
from eval.messages import RequestError
from eval.rows.progress import watching
from eval.sites.circuit import Circuit
from tests.eval.inversion.search_cases import posed, prompts, sharpened, solve, tokens_of

V, STEPS = 48, 40


@pytest.fixture
def model(small_model):
    """A model of few tokens whose next one is mostly the one after the present one."""
    model = sharpened(small_model(vocab_size=V), 2.0)
    model.head.weight.copy_(0.2 * model.embedding.weight.roll(1, dims=0))
    return model


def test_the_model_writes_text_by_its_own_chances(model):
    """Against the model's own probabilities of what it wrote: their mean is its entropy."""
    text = write_text(Circuit(model, 2), 4000, torch.Generator().manual_seed(0))
    assert text.shape == (125, 32)
    chances = model.logits(model.hidden(model.embed(text), 2))[:, :-1].log_softmax(dim=-1)
    written = chances.gather(2, text[:, 1:, None]).mean()
    expected = (chances.exp() * chances).sum(dim=-1).mean()
    assert float(written) == pytest.approx(float(expected), abs=0.06)


@pytest.mark.slow
def test_a_decoder_reads_its_output(model, monkeypatch):
    """A prompt costs it far fewer nats than by another prompt's output; its draws repeat."""
    monkeypatch.setattr("torch.cuda.manual_seed_all", None)  # other devices' numbers stay
    circuit = Circuit(model, 2)
    before = torch.get_rng_state()
    trained, one, other = (train_decoder(circuit, 0, None, 2, steps) for steps in (STEPS, 5, 5))
    assert torch.get_rng_state().equal(before)
    tokens = write_text(circuit, 2048, torch.Generator().manual_seed(5))[:, -2:]
    outputs = circuit.of_tokens(tokens)[:, -1]

    def nats(decoder, outputs):
        logits = decoder(outputs, tokens[:, :-1], 2).flatten(0, 1)
        return float(torch.nn.functional.cross_entropy(logits, tokens.flatten()))

    own = nats(trained, outputs)
    assert own < nats(trained, outputs.roll(1, dims=0)) - 0.5
    assert nats(one, outputs) == nats(other, outputs) > own
    assert not any(p.requires_grad for p in trained.parameters())
    assert circuit.of_tokens(tokens)[:, -1].equal(outputs)  # the model itself stays as it was


@pytest.mark.first(1)
@pytest.mark.parametrize("shown", ["[:, -1, :]", "[:, 2:, :]", "[:, :2+5:, :20]"])
def test_hidden_tokens_are_found_from_what_is_shown(model, shown):
    truth = prompts(2, 6, V)
    problem = posed(model, truth, shown)
    answers = solve("decoder", problem, steps=STEPS)
    assert tokens_of(answers).equal(truth)
    assert [answer.certificate for answer in answers] == ["residual"] * 2
    for answer in answers:
        assert answer.scores.argmax(dim=1).equal(answer.tokens)
        assert answer.evaluations > 1000
    assert tokens_of(solve("decoder", problem, steps=STEPS)).equal(truth)
    kept = open_decoder(problem, STEPS)
    assert kept is open_decoder(problem, STEPS)
    assert kept is not open_decoder(problem, 1)


@pytest.mark.slow
def test_a_search_ends_at_its_budget_with_the_nearest(model):
    """Of outputs that no prompt gives: with a budget of the first guesses, and of some rounds."""
    real = posed(model, prompts(1, 6, V), "[:, -1, :]")
    problem = replace(real, target=real.target.roll(1, dims=-1))
    (short,) = solve("decoder", problem, steps=STEPS, budget=1)
    (longer,) = solve("decoder", problem, steps=STEPS, budget=60_000)
    assert (short.notes["rounds"], short.certificate) == (0, None)
    assert longer.notes["rounds"] > 0
    assert longer.evaluations >= 60_000
    assert longer.notes["distance"] < short.notes["distance"]


@pytest.mark.first(1)
@pytest.mark.parametrize("after", [3, STEPS + 1])
def test_a_watcher_ends_the_training_or_the_search(model, after):
    real = posed(model, prompts(1, 6, V), "[:, -1, :]")
    problem = replace(real, target=real.target.roll(1, dims=-1))
    seen = []

    def watch(progress):
        seen.append(progress.tokens)
        if len(seen) == after:
            raise KeyboardInterrupt

    with watching(watch), pytest.raises(KeyboardInterrupt):
        solve("decoder", problem, steps=STEPS)
    assert (seen[-1] is None) == (after < STEPS)


def test_a_prompt_as_long_as_the_context_is_refused(model):
    problem = posed(model, prompts(1, 32, V), "[:, -1, :]")
    with pytest.raises(RequestError, match="context"):
        solve("decoder", problem, steps=STEPS)
