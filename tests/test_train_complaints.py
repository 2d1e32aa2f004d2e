"""What users of well-known trainers complain about, each with the test that keeps it from us."""

import re
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from arch import LanguageModel, ModelConfig
from tests.train_cases import fit, pack_toy
from train.checkpoints import read_whole_checkpoint
from train.module import LanguageModule
from train.settings import OptimizerSettings, ScheduleSettings

ROOT = Path(__file__).resolve().parent

COMPLAINTS = {
    "evaluations ran out of memory, the model was never saved (nanochat #446)":
        "train_resume::test_a_model_is_saved_before_it_is_validated",
    "a resume in one epoch spoils the next (litgpt #1712)":
        "train_resume::test_an_interrupted_run_goes_on_to_the_bit",
    "the loader's state is dropped on resume (Lightning #20550)":
        "train_data::test_a_run_resumed_over_an_epochs_edge_is_the_same_to_the_bit",
    "checkpoints that are half written (Lightning #19970, #21431)":
        "train_kill::test_a_run_killed_at_any_moment_ends_as_if_it_were_not",
    "the second run dies of a config.yaml that is there (Lightning #7679, #14162)":
        "train_tracking::test_a_run_offline_stays_in_its_directory_and_keeps_its_id",
    "names with _orig_mod. (Lightning #17415, nanoGPT #325)":
        "train_complaints::test_compiling_renames_nothing",
    "checkpoints that weights_only cannot read (Lightning #21757)":
        "train::test_checkpoints_hold_tensors_and_plain_values_only",
    "a resume needs more memory than the training (nanoGPT #236)":
        "train_complaints::test_a_checkpoint_is_mapped_and_not_copied",
    "tuning makes the first steps slow, again at every length (fla #533, #1147)":
        "kernels_triton::test_tiles_are_a_rule_and_fit_every_shape",
    "short sequences do not compile (fla #88)":
        "arch_model::test_any_length_up_to_the_context_runs",
    "no import without Triton (fla #113)":
        "kernels::test_import_needs_no_triton",
    "the installation needs nvcc (mamba #104, #639, #665, #720)":
        "train_complaints::test_there_is_nothing_to_compile_at_installation",
    "compilation fails, or computes in fp64 (Liger #174, #1350)":
        "kernels::test_operators_pass_opcheck",
    "logits that are not the real model's (TransformerLens #526, #693)":
        "pretrained::test_hidden_states_and_logits_are_transformers_own",
    "local models are awkward (TransformerLens #252, #871)":
        "pretrained::test_a_saved_model_loads_with_its_tokenizer",
    "hours of work lost for want of a directory (lm-eval #2927, litgpt #942)":
        "eval::test_output_that_cannot_be_written",
    "evaluating offline is unclear (lm-eval #1723, #2468, #3147)":
        "eval::test_invert_writes_rows_and_report_makes_a_page",
    "eight H100s or nothing (modded-nanogpt #29, #145)":
        "train::test_every_recipe_is_one_that_can_be_run",
    "nothing can be compared offline (wandb #5309)":
        "compare_table::test_command_prints_and_writes",
    "a resume opens another run in W&B (Lightning #4935)":
        "train_tracking::test_a_run_that_was_moved_keeps_its_id",
}  # fmt: skip


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_every_complaint_has_its_test(complaint: str):
    file, _, name = COMPLAINTS[complaint].partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / f"test_{file}.py").read_text(), re.M)


def test_compiling_renames_nothing():
    config = ModelConfig(vocab_size=50, context=8, d_model=8, n_layers=1)
    module = LanguageModule(LanguageModel(config), OptimizerSettings(), ScheduleSettings(), 1)
    before = list(module.state_dict())
    module.compile_loss()
    assert list(module.state_dict()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is mapped")
def test_a_checkpoint_is_mapped_and_not_copied(small_tokenizer: Tokenizer, tmp_path: Path):
    data = pack_toy(small_tokenizer, tmp_path / "packed", 4).path
    assert fit(data, tmp_path / "run") == 0
    path = tmp_path / "run" / "checkpoints" / "step-000006.ckpt"
    tensors = read_whole_checkpoint(path)["state_dict"].values()
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split()[0].split("-") for line in lines if line.endswith(str(path))]
    for tensor in tensors:
        assert tensor.device == torch.device("cpu")
        assert any(int(a, 16) <= tensor.data_ptr() < int(b, 16) for a, b in places)


def test_there_is_nothing_to_compile_at_installation():
    root = ROOT.parent
    assert 'build-backend = "setuptools.build_meta"' in (root / "pyproject.toml").read_text()
    assert not (root / "setup.py").exists()
    rooms = ("arch", "tokenizer", "train", "eval")
    sources = {path.suffix for room in rooms for path in (root / room).rglob("*") if path.is_file()}
    assert not sources & {".c", ".cc", ".cpp", ".cu", ".pyx", ".so"}
