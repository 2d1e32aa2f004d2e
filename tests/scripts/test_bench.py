"""What the benchmarks share: bad input, the page that is written, the words of a command."""

import pandas
import pytest
import yaml

from eval import RequestError
from scripts.bench import inversion as bench_inversion
from scripts.bench import kernels as bench_kernels
from scripts.bench import shared as bench
from scripts.bench import steps as bench_steps
from scripts.bench import training as bench_training

SMALL = ["--device", "cpu", "--threads", "1", "--d-model", "16", "--layers", "1"]
INVERSION, KERNELS, TRAINING = bench_inversion.main, bench_kernels.main, bench_training.main


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (INVERSION, "--models nowhere", "nowhere"),
        (INVERSION, "--d-model 6", "heads"),
        (INVERSION, "--turns 0", "--turns: '0'"),
        (TRAINING, "--data nowhere", "nowhere"),
        (KERNELS, "--device cuda", "--device"),
        (bench_steps.main, "nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    main, words, message, packed, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "out"
    try:
        code = main([*words.format(data=packed.path).split(), "--out", str(out)])
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr().err.splitlines()[-1]
    assert (code, "error: " in said, out.exists()) == (2, True, False)
    assert message in said


def test_an_unwritable_place_is_known_before_anything_is_measured(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert KERNELS(["--out", str(tmp_path / "file" / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_command_is_shown_without_where_files_lie():
    words = ["--out", "/a/b", "--data", "/a/b/toy", "runs/x", "/a/runs/flat/models/step-000010"]
    shown = "python -m scripts.x --data toy runs/x flat/models/step-000010"
    assert bench.command("scripts.x", words) == shown


def test_the_page_of_inversion_keeps_what_was_measured(tmp_path, monkeypatch):
    page = tmp_path / "docs" / "inversion-cpu.md"

    def broken(*_):
        raise RequestError("no more")

    asked = {"first": lambda *_: "1.5", "second": broken}
    monkeypatch.setattr(bench_inversion, "QUESTIONS", asked)
    assert INVERSION([*SMALL, "--out", str(page.parent)]) == 2
    text = page.read_text(encoding="utf-8")
    assert "| first | 1.5 | 1.5 |" in text
    assert "Not measured: second." in text
    monkeypatch.setattr(bench_inversion, "QUESTIONS", {"first": lambda *_: "1.5"})
    assert INVERSION([*SMALL, "--out", str(page.parent)]) == 0
    assert "| first | 1.5 | 1.5 |" in page.read_text(encoding="utf-8")
    assert list(page.parent.iterdir()) == [page]


def test_every_part_of_a_step_has_its_time(tmp_path):
    recipe = tmp_path / "toy.yaml"
    model = {"vocab_size": 48, "context": 16, "d_model": 32, "n_layers": 1, "d_ff": 40}
    mixers = {"attention": "[attention(heads=4)]", "flat": "[flat]"}
    for name, mixer in mixers.items():
        settings = {"model": model | {"mixers": yaml.safe_load(mixer)}}
        settings |= {"trainer": {"max_steps": 4}, "optimizer": {"name": "muon"}}
        recipe.write_text(yaml.safe_dump(settings))
        out = tmp_path / name
        words = [str(recipe), "--steps", "1", "--threads", "1", "--out", str(out)]
        assert bench_steps.main(words) == 0
        rows = pandas.read_csv(out / "steps-cpu.csv")
        assert set(rows.part) == {"step", *bench_steps.GROUPS}
        spent = rows.set_index("part").ms
        assert "toy in 32-true" in (out / "steps-cpu.md").read_text(encoding="utf-8")
        assert (spent[["head", "blocks", "mixing", "loss", "optimizer", "rest"]] > 0).all()
