"""Training refuses a mixer that sees the future, and goes on without samples where it must."""

import pytest

from eval.__main__ import main
from tests.arch import leaks
from tests.said import complaint
from tests.train.cases import fit, names


def mixer(kind: type) -> tuple[str, str]:
    return "--model.mixers", f"[flat,{kind.__module__}.{kind.__name__}]"


def test_a_mixer_that_sees_the_future_is_refused_before_anything_is_written(
    data, tmp_path, refused
):
    line = refused(fit(data, tmp_path / "run", *mixer(leaks.ClosedGate)))
    assert "layer 2 (ClosedGate) is not causal" in line
    assert not (tmp_path / "run").exists()


def test_a_leak_that_opens_in_training_is_refused_at_the_next_saved_model(
    data, tmp_path, at_step, monkeypatch, capsys
):
    monkeypatch.setattr(leaks.Opened, "open", False)

    def opens(loss):
        monkeypatch.setattr(leaks.Opened, "open", True)
        return loss

    at_step(3, opens)
    run = tmp_path / "run"
    assert fit(data, run, *mixer(leaks.Opened), "--save_every", "2", "--checkpoint_every", "2") == 2
    assert "layer 2 (Opened) is not causal" in complaint(capsys)
    assert names(run / "models") == ["step-000000", "step-000002"]
    assert fit(data, run, *mixer(leaks.Opened), "--resume", "auto") == 2
    assert "layer 2 (Opened) is not causal" in complaint(capsys)
    model = str(run / "models" / "step-000002")
    assert main(["loss", model, "--corpus", str(data), "--out", str(tmp_path / "out")]) == 2
    assert "layer 2 (Opened) is not causal" in complaint(capsys)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def without_step(data, tmp_path, capsys):
    """A run of a mixer that has no step, and what it printed."""
    assert fit(data, tmp_path / "run", *mixer(leaks.NoStep)) == 0
    return tmp_path / "run", capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "{model}", "--prompt", "Once"),
        ("invert", "{model}", "--text", "Once upon", "--methods", "sweep", "--slices", "[:, :, :]",
         "--out", "{out}"),
    ],
)  # fmt: skip
def test_commands_that_need_step_refuse_in_one_line(words, without_step, tmp_path, capsys):
    run, _ = without_step
    model, out = run / "models" / "step-000006", tmp_path / "out"
    assert main([word.format(model=model, out=out) for word in words]) == 2
    assert "mixer NoStep has no prefix/step" in complaint(capsys)
