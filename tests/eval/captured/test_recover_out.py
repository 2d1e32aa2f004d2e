"""`recover --out`: answers are kept as they are found, and not searched twice."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arch import save_model
from eval import activations, open_model
from eval.__main__ import main
from eval.captured import task as searching
from eval.captured.task import LETTERS, describe_rows
from eval.inversion.solver import SOLVERS, solvers

TEXTS = "Tom had a red ball.", "The hen ran home to"


@pytest.fixture(scope="module")
def model(tmp_path_factory, small_model, small_tokenizer):
    """The directory of a model, and the model as it is open: what is fitted of it is kept."""
    path = tmp_path_factory.mktemp("flat") / "step-000000"
    about = {"name": "flat", "step": 0}
    save_model(path, small_model(), small_tokenizer.to_str(), about)
    return str(path), open_model(str(path))


@pytest.fixture
def words(tmp_path, model, monkeypatch):
    """A model, a file of two tensors and a results directory."""
    path, checkpoint = model
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: checkpoint)
    held = {}
    for layer in (1, 2):
        (batch,) = activations(checkpoint, [TEXTS[0]], layer)
        held |= batch.outputs
    file = tmp_path / "captured.safetensors"
    save_file({name: outputs.contiguous() for name, outputs in held.items()}, file)
    return [str(file), "--model", path, "--corpus", "toy:400", "--out", str(tmp_path / "o")]


def rows_of(words):
    lines = Path(words[-1], "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def refuse(*_, **__):
    raise AssertionError("searched again")


def test_what_is_there_is_not_searched_again(words, monkeypatch, capsys):
    assert main(["recover", *words]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(searching, "recover", refuse)
    monkeypatch.setattr("eval.models.checkpoint.open_model", open_model)  # it is opened again
    assert main(["recover", *words]) == 0
    assert capsys.readouterr().out == first
    assert [row["text"] for row in rows_of(words)] == [TEXTS[0]] * 2
    with pytest.raises(AssertionError, match="searched again"):
        main(["recover", *words, "--seed", "1"])


def test_two_files_have_sections_of_their_own_on_a_page(words, tmp_path):
    file, *flags = words
    held = load_file(file)
    save_file({"block.1": held["block.1"]}, file)
    other = tmp_path / "other.safetensors"
    save_file({"block.1": held["block.1"].bfloat16()}, other)
    for path in (file, str(other)):
        assert main(["recover", path, *flags]) == 0
    assert main(["report", words[-1], "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "stored as fp32" in page
    assert "stored as bf16" in page


def test_the_residual_is_that_of_the_text(words, capsys):
    """It was that of the rows that no token fits, which are left out."""
    file, *flags = words
    held = load_file(file)["block.1"]
    rows = torch.randn(1, 3, held.shape[2], generator=torch.Generator().manual_seed(0))
    save_file({"block.1": torch.cat([held, rows * held.std()], dim=1)}, file)
    assert main(["recover", file, *flags]) == 0
    said = capsys.readouterr().out
    assert "no token fits; left out of the text" in said
    assert float(said.partition("residual at most ")[2].split()[0]) < 10


@pytest.mark.parametrize("flags", [["--truth", "no"], ["--page", "."]])
def test_a_wrong_truth_or_page_does_not_lose_the_answer(words, flags, capsys):
    """Without `--out` the answer is nowhere else."""
    assert main(["recover", *words[:-2], "--tensor", "block.2", *flags]) == 2
    *answer, error = capsys.readouterr().err.splitlines()
    assert any(TEXTS[0] in line for line in answer)
    assert error.startswith(f"error: {flags[0]}")


def test_an_interrupted_search_keeps_what_was_found(words, monkeypatch, capsys):
    search, calls = searching.recover, []

    def once(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return search(*args, **kwargs)

    monkeypatch.setattr(searching, "recover", once)
    assert main(["recover", *words]) == 130
    said = capsys.readouterr().err
    assert TEXTS[0] in said
    assert [row["tensor"] for row in rows_of(words)] == ["block.1"]
    assert main(["recover", *words, "--tensor", "block.1"]) == 0
    monkeypatch.setattr(searching, "recover", search)
    assert main(["recover", *words]) == 0
    assert [row["tensor"] for row in rows_of(words)] == ["block.1", "block.2"]


def test_views_show_what_was_kept(words, tmp_path, capsys):
    assert main(["recover", *words]) == 0
    page = tmp_path / "page.html"
    assert main(["summary", words[-1]]) == 0
    assert "certain" in capsys.readouterr().out
    assert main(["report", words[-1], "--out", str(page)]) == 0
    assert "block.2" in page.read_text()


def test_another_tensor_of_one_name_is_another_question(words, model):
    assert main(["recover", *words, "--tensor", "block.1"]) == 0
    (batch,) = activations(model[1], [TEXTS[1]], 1)
    save_file({"block.1": torch.clone(batch.outputs["block.1"])}, words[0])
    assert main(["recover", *words, "--tensor", "block.1"]) == 0
    assert [row["text"] for row in rows_of(words)] == list(TEXTS)


def padded(model, side):
    """Outputs of both texts in one tensor, whose other rows are drawn, and their mask."""
    rows = [next(activations(model, [text], 1)).outputs["block.1"][0] for text in TEXTS]
    T = 3 + max(map(len, rows))
    outputs = torch.randn(
        len(rows), T, rows[0].shape[1], generator=torch.Generator().manual_seed(0)
    )
    mask = torch.zeros(len(rows), T, dtype=torch.long)
    for prompt, held in enumerate(rows):
        kept = slice(T - len(held), T) if side == "left" else slice(0, len(held))
        outputs[prompt, kept], mask[prompt, kept] = held, 1
    return outputs, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_a_mask_leaves_out_are_not_read(words, model, side, tmp_path, capsys):
    outputs, mask = padded(model[1], side)
    save_file({"block.1": outputs, "attention_mask": mask}, words[0])
    assert main(["recover", *words]) == 0
    assert [row["text"] for row in rows_of(words)] == list(TEXTS)
    hole = mask.clone()
    hole[0, mask.shape[1] // 2] = 0
    added_to_scores = torch.where(mask == 1, 0.0, -torch.inf)
    for wrong in (hole, added_to_scores, 0 * mask):
        save_file({"block.1": outputs, "attention_mask": wrong}, words[0])
        assert main(["recover", *words]) == 2
        assert "attention_mask of prompt 0" in capsys.readouterr().err


@pytest.mark.parametrize("noisy", [0, 1])
def test_a_masked_prompt_that_fits_nowhere_leaves_the_others(words, model, noisy, capsys):
    """The longest is searched first; of a file without a site all were refused for one prompt."""
    outputs, mask = padded(model[1], "left")
    outputs[noisy] = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(1))
    save_file({"x": outputs, "attention_mask": mask}, words[0])
    assert main(["recover", *words]) == 0
    rows = rows_of(words)
    assert [row["site"] for row in rows] == ["block.1"] * 2
    assert [row["sites_tried"] for row in rows] == [rows[0]["sites_tried"]] * 2
    assert rows[1 - noisy]["text"] == TEXTS[1 - noisy]
    assert "certain" not in rows[noisy]["grades"]
    assert [len(row["padding"]) for row in rows] == (mask == 0).sum(dim=1).tolist()
    assert "x: block.1, fp32, by propose; found: 6 of" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [[1], [0, 1]])
def test_which_rows_and_prompts_a_line_counts_is_said_before_it(words, model, wrong, capsys):
    """A line about prompt 1 named prompt 0: each group of prompts is searched alone.

    One that two groups said in the same words was said of the first alone.
    """
    outputs, mask = padded(model[1], "left")
    first = mask.argmax(dim=1).tolist()
    for prompt in wrong:
        outputs[prompt, first[prompt] + 4] = outputs[prompt, first[prompt] + 3]
    save_file({"block.1": outputs, "attention_mask": mask}, words[0])
    assert main(["recover", *words]) == 0
    lines = capsys.readouterr().err.splitlines()
    said = [n for n, line in enumerate(lines) if "row 4 repeats row 3" in line]
    groups = [next(x for x in reversed(lines[:n]) if "by attention_mask" in x) for n in said]
    spans = {f"rows {first[prompt]} to {mask.shape[1] - 1} of prompts {prompt}" for prompt in wrong}
    assert {group.partition("attention_mask ")[2].partition(";")[0] for group in groups} == spans


def test_what_a_model_s_weights_tell_is_said_once(
    words, small_model, small_tokenizer, monkeypatch, capsys
):
    """It was said of each group of prompts that a mask leaves the same rows of."""
    half = open_model(small_model().bfloat16(), tokenizer=small_tokenizer)
    monkeypatch.setattr("eval.models.checkpoint.open_model", lambda *_: half)
    outputs, mask = padded(half, "left")
    save_file({"block.1": outputs, "attention_mask": mask}, words[0])
    assert main(["recover", *words]) == 0
    assert capsys.readouterr().err.count("no certificate below float32") == 1


def test_what_is_true_of_all_rows_is_said_once_for_all_groups_of_a_mask(words, model, capsys):
    outputs, mask = padded(model[1], "left")
    save_file({"block.1": outputs.to(torch.float8_e4m3fn), "attention_mask": mask}, words[0])
    assert main(["recover", *words]) == 0
    said = capsys.readouterr().err
    assert said.count("by attention_mask rows") == 2
    assert said.count("without a scale") == 1


@pytest.mark.parametrize(
    ("wrong", "lost", "prompts"),
    [
        (torch.nan, 0, [0, 1, 0]),
        (torch.nan, 1, [0, 0, 0]),
        (0.0, 1, [0, 1, 0]),
        (None, 2, [0, 1, 0]),
    ],
)
def test_a_masked_prompt_that_cannot_be_read_leaves_the_others(
    words, model, wrong, lost, prompts, capsys
):
    """It was refused with the others, of the same rows or not, which were answered already."""
    outputs, mask = (x[prompts] for x in padded(model[1], "left"))
    if wrong is None:
        mask[lost] = 0
    else:
        outputs[lost] = wrong
    save_file({"block.1": outputs, "attention_mask": mask}, words[0])
    texts = [TEXTS[prompt] for prompt in prompts]
    assert main(["recover", *words, "--truth", *texts]) == 0
    rows, said = rows_of(words), capsys.readouterr()
    kept = [prompt for prompt in range(3) if prompt != lost]
    assert [row["prompt"] for row in rows] == kept
    assert [row["text"] for row in rows] == [texts[prompt] for prompt in kept]
    assert all([*row["refused"]] == [str(lost)] for row in rows)
    assert f"of prompts {lost}" in said.err
    assert f"; {len(rows[0]['tokens'])} right" in said.out
    assert main(["recover", *words]) == 0
    assert rows_of(words) == rows
    lines = capsys.readouterr().out.splitlines()
    shown = [line.strip() for line in lines if line.startswith(("  '", "  prompt "))]
    assert len(shown) == 3  # by their numbers, also the one that has no text
    assert shown[lost].startswith(f"prompt {lost} ")
    assert main(["recover", *words, "--truth", *TEXTS]) == 2


def test_a_site_that_no_first_row_tells_is_said_to_be_taken_by_mean_and_variance(words, capsys):
    """It was called the nearest, as no token fitted at any; none had been tried."""
    held = load_file(words[0])
    save_file({"x": held["block.1"][:, 1:].contiguous()}, words[0])
    assert main(["recover", *words, "--first", "1"]) == 0
    said = capsys.readouterr()
    assert "found: by mean and variance alone" in said.out
    assert "give --layer and --part" in said.err


@pytest.mark.parametrize("axes", [(-1,), (0, 1), (0, 2)], ids=["token", "channel", "position"])
def test_rows_of_codes_that_a_mask_leaves_out_are_not_read(words, model, axes):
    """The mask was not used beside a scale that has not a number for each code."""
    outputs, mask = padded(model[1], "left")
    scale = outputs.abs().amax(axes, keepdim=True) / 127
    held = {"block.1": (outputs / scale).round().to(torch.int8), "attention_mask": mask}
    held["block.1.scale"] = scale if axes == (-1,) else scale.flatten()
    save_file(held, words[0])
    assert main(["recover", *words]) == 0
    assert [row["text"] for row in rows_of(words)] == list(TEXTS)


HILL = """
import torch

from eval.inversion.solver import Answer, solver

CODE = {number}

@solver("search", random=True, title="one token")
def single(problem, chance):
    "Answers with one token throughout."
    tokens = problem.target.new_zeros(problem.length, dtype=int)
    scores = torch.zeros(problem.length, len(problem.vocabulary))
    return [Answer(tokens, scores, evaluations=1) for _ in problem.target]
"""


@pytest.mark.slow
def test_answers_of_a_solver_whose_code_changed_are_found_anew(words, tmp_path, monkeypatch):
    monkeypatch.setattr(SOLVERS, "entries", dict(solvers()))  # others are not asked about it
    plugin = tmp_path / "single.py"
    for number in (1, 2, 2):
        plugin.write_text(HILL.format(number=number))
        assert (
            main(
                ["recover", *words[:-2], "--solver", "single", "--plugin", str(plugin), *words[-2:]]
            )
            == 0
        )
    assert len(rows_of(words)) == 4


def test_a_scale_that_the_file_holds_is_not_overruled_in_silence(words, tmp_path, capsys):
    file = tmp_path / "codes.safetensors"
    codes = torch.ones(3, 32, dtype=torch.int8)
    save_file({"block.1": codes, "block.1.scale": torch.full((3, 1), 0.1)}, file)
    assert main(["recover", str(file), *words[1:], "--scale", "0.2"]) == 2
    assert "--scale 0.2: the file holds a scale of block.1" in capsys.readouterr().err
    save_file({"block.1": 0.1 * codes.float(), "units": torch.ones(3, 1)}, file)
    assert main(["recover", str(file), *words[1:], "--scale", "units"]) == 2
    assert "--scale units: " in capsys.readouterr().err


def test_a_long_text_that_is_cut_and_a_little_noise_are_said():
    """A text ended amid a word without a line, and 0.03 % was 0.0 %."""
    row = {
        "prompt": 0, "site": "block.1", "format": "fp32", "solver": "propose", "sites_tried": [],
        "text": "a" * (LETTERS + 998), "left_out": [], "grades": ["likely"],
        "residual_over_floor": {"0": 40.0}, "relative_residual": 3e-4,
    }  # fmt: skip
    said = describe_rows("x", [row])
    assert "\n    and 1,000 letters more" in said
    assert "half of the outputs 0.03 % or more" in said
    assert "letters more" not in describe_rows("x", [row | {"text": "a" * (LETTERS - 2)}])
