"""Training refuses a mixer that sees the future, and takes one that cannot generate."""

import pytest

from arch.mixers import TokenMixer
from arch.storage.files import read_json
from eval.__main__ import main
from tests.arch import leaks
from tests.said import complaint
from tests.train.cases import TINY, fit
from train.__main__ import main as train


def mixer(kind: type) -> tuple[str, str]:
    return "--model.mixers", f"[flat,{kind.__module__}.{kind.__name__}]"


def test_a_mixer_that_sees_the_future_is_refused_before_anything_is_written(
    data, tmp_path, refused
):
    line = refused(fit(data, tmp_path / "run", *mixer(leaks.ClosedGate)))
    assert "layer 2 (ClosedGate) is not causal" in line
    assert not (tmp_path / "run").exists()


def test_a_leak_that_opens_in_training_is_refused_when_its_model_is_opened(
    data, tmp_path, at_step, monkeypatch, capsys
):
    monkeypatch.setattr(leaks.Opened, "open", False)

    def opens(loss):
        monkeypatch.setattr(leaks.Opened, "open", True)
        return loss

    at_step(3, opens)
    run = tmp_path / "run"
    assert fit(data, run, *mixer(leaks.Opened)) == 0
    capsys.readouterr()
    model = str(run / "models" / "step-000006")
    asked = ["loss", model, "--corpus", str(data), "--out", str(tmp_path / "out"), "--trust_code"]
    assert main(asked) == 2
    assert "layer 2 (Opened) is not causal" in complaint(capsys)
    assert not (tmp_path / "out").exists()


class Upcasts(TokenMixer):
    """Causal, and in float32 whatever it reads."""

    def __init__(self, d_model: int, context: int) -> None:
        super().__init__()

    def forward(self, x):
        return x.float().cumsum(1)


@pytest.mark.parametrize("kind", [Upcasts, leaks.PaddedFFT])  # the other cannot read bfloat16
def test_a_mixer_that_cannot_be_trained_in_bfloat16_is_named(kind, data, tmp_path, refused):
    """It was a traceback of torch."""
    flags = ["--precision", "bf16-true", *mixer(kind)]
    for code in (
        lambda: fit(data, tmp_path / "run", *flags),
        lambda: train(["plan", *TINY.split(), *flags]),
    ):
        line = refused(code())
        assert "--precision bf16-true: the mixer of layer 2, " in line
        assert kind.__name__ in line
    assert not (tmp_path / "run").exists()
    assert fit(data, tmp_path / "run", *flags[:2], *mixer(leaks.ForwardOnly)) == 0


def test_a_mixer_that_was_edited_between_two_starts_is_said(data, tmp_path, monkeypatch, capsys):
    run, file = tmp_path / "run", tmp_path / "mixer_to_edit.py"
    file.write_text("from tests.arch.leaks import ForwardOnly as Own\n")
    monkeypatch.syspath_prepend(tmp_path)
    flags = ["--model.mixers", "[mixer_to_edit.Own]", "--resume", "auto", "--trainer.max_steps"]
    assert fit(data, run, *flags, "1") == fit(data, run, *flags, "2") == 0
    assert "machine.code" not in capsys.readouterr().out
    file.write_text(file.read_text() + "# another one\n")
    assert fit(data, run, *flags, "3") == 0
    assert "resumed at step 2 with machine.code " in capsys.readouterr().out
    ids = {read_json(path / "meta.json")["model_id"] for path in (run / "models").iterdir()}
    assert len(ids) == 1


@pytest.mark.parametrize("kind", [leaks.ForwardOnly, leaks.NoStep])
def test_a_mixer_with_forward_alone_is_inverted_and_a_half_one_refused(
    kind, data, tmp_path, capsys
):
    assert fit(data, tmp_path / "run", *mixer(kind)) == 0
    assert train(["plan", "--data", str(data), *TINY.split(), *mixer(kind)]) == 0
    model, out = str(tmp_path / "run" / "models" / "step-000006"), str(tmp_path / "out")
    search = ["--solvers", "sweep", "--slices"]
    for words in (
        ["generate", model, "--prompt", "Once"],
        ["invert", model, "--text", "Once upon", *search, "[:, :, :]", "--out", out],
    ):
        capsys.readouterr()
        whole = kind is leaks.ForwardOnly or words[0] == "generate"  # which needs no step
        assert main([*words, "--trust_code"]) == (0 if whole else 2)
        if not whole:
            assert "mixer NoStep has a prefix of its own and no step" in complaint(capsys)
