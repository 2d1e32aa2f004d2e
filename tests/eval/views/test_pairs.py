"""Two models paired on what both were asked."""

import numpy as np
import pytest
from scipy import stats

from eval.analysis.frame import frame
from eval.messages import say_once
from eval.rows.store import Results
from eval.views.comparison.pairs import paired_records
from tests.eval.views.compare_cases import run_compare
from tests.eval.views.page.cases import about, bits_row, loss_row, make_row, make_rows


def test_two_checkpoints_are_compared_on_what_both_were_asked():
    share = {"flat": (1.0, 0.9), "llama": (1.0, 0.4)}
    rows = [
        make_row(model, solver="alternating", prompt=p, share=share[model])
        for model in share
        for p in range(30 if model == "flat" else 28)
    ]
    rows += [loss_row(make_row(name)["checkpoint"], nats) for name, nats in
             {"flat": [3.0, 4.0, 5.0], "llama": [4.0, 5.0, 7.0]}.items()]  # fmt: skip
    lines = frame(rows)
    records = paired_records(lines, ("flat", 300), ("llama", 300), margin=5)
    found = {record["figure"]: record for record in records}
    assert set(found) == {"bits/byte", "hidden 3"}
    hidden = found["hidden 3"]
    hits = {name: [sum(r == 0 for r in row["rank"][:3]) for row in rows[:58]
                   if row["checkpoint"]["name"] == name][:28] for name in share}  # fmt: skip
    expected = (sum(hits["flat"]) - sum(hits["llama"])) / (3 * 28)
    assert hidden["difference"] == pytest.approx(expected)
    assert (hidden["n"], hidden["units"]) == (28, "prompts")
    assert hidden["low"] < expected < hidden["high"]
    assert hidden["p"] < 0.01
    assert not hidden["equivalent"]
    bits = found["bits/byte"]
    assert bits["difference"] == pytest.approx(-4 / 6 / np.log(2))
    assert (bits["n"], bits["p"]) == (3, 0.25)  # of the 8 ways to sign three differences, 2


def test_two_checkpoints_are_paired_at_what_they_were_asked_whatever_others_were():
    rows = [make_row(model, step, solver="alternating", prompt=p, length=24 if step == 300 else 16)
            for model in ("flat", "llama") for step in (0, 100, 300) for p in range(4)]  # fmt: skip
    (record,) = paired_records(frame(rows), ("flat", 300), ("llama", 300), margin=5)
    assert (record["figure"], record["n"]) == ("hidden 3", 4)


def test_passages_of_other_tokens_are_no_pair():
    """Models of two tokenizers were paired where the tokens asked about have one number."""
    rows = [bits_row(about(300, name, name), n, bits + n * bits / 9)
            for name, bits in (("a", 2.0), ("b", 3.0)) for n in range(6)]  # fmt: skip
    (record,) = paired_records(frame(rows), ("a", 300), ("b", 300), margin=5)
    assert (record["n"], record["units"]) == (6, "passages")
    rows[6:] = [row | {"tokens": [*row["tokens"], 7]} for row in rows[6:]]
    assert not paired_records(frame(rows), ("a", 300), ("b", 300), margin=5)


def test_texts_are_paired_by_what_they_are_and_not_by_their_number():
    """Of models that were asked in another order a text was paired with none, and not a line."""
    texts: dict = {"prompts": "text", "solver": "alternating"}
    rows = [make_row("flat", prompt=number, **texts) for number in range(3)]
    others = [make_row("llama", prompt=number, **texts) for number in (2, 0)]
    rows += [row | {"prompt": number} for number, row in enumerate(others)]
    pair = ("flat", 300), ("llama", 300)
    (record,) = paired_records(frame(rows), *pair, margin=5, prompts="text")
    assert (record["figure"], record["n"]) == ("hidden 3", 2)


def test_alike_checkpoints_are_equivalent_and_seeds_are_the_unit():
    same = [make_row(m, solver="sweep", hidden=0, prompt=p, truth=[p] * 16)
            for m in ("flat", "llama") for p in range(80)]  # fmt: skip
    (record,) = paired_records(frame(same), ("flat", 300), ("llama", 300), margin=5)
    assert (record["difference"], record["p"], record["equivalent"]) == (0, 1, True)
    assert 0 < record["high"] < 0.05  # all agree, which leaves some room
    (record,) = paired_records(frame(same), ("flat", 300), ("llama", 300), margin=1)
    assert not record["equivalent"]
    rows = [
        loss_row(about(300, f"{name}{seed}", f"{name}-s{seed}"), [bits + 0.1 * seed, 3.0])
        for name, bits in {"a": 3.0, "b": 5.0}.items()
        for seed in range(3)
    ]
    (record,) = paired_records(frame(rows), ("a", 300), ("b", 300), margin=5)
    first, second = ([(bits + 0.1 * s + 3) / 4 / np.log(2) for s in range(3)] for bits in (3, 5))
    expected = stats.ttest_ind(first, second, equal_var=False)
    assert (record["n"], record["units"]) == (3, "seeds")
    assert record["p"] == pytest.approx(expected.pvalue)  # pyright: ignore
    for row in rows:  # runs of one name, each in a directory of its own
        row["checkpoint"] |= {"name": row["checkpoint"]["name"][:1]}
    (named,) = paired_records(frame(rows), ("a", 300), ("b", 300), margin=5)
    assert (named["units"], named["p"]) == ("seeds", record["p"])


def test_the_difference_and_its_interval_are_of_what_every_seed_was_asked(capsys):
    """Windows that one seed alone was asked moved the difference out of its own interval."""
    say_once.cache_clear()
    whole = {"stories": 8, "bytes": 16}

    def pair(count):
        nats = {"a": [[1.0 + seed / 10] * 4 + [9.0] * (count if seed == 0 else 0)
                      for seed in range(5)],
                "b": [[5.0 + seed / 5] * (4 + count) for seed in range(5)]}  # fmt: skip
        rows = [loss_row(about(300, f"{name}{seed}", f"{name}-s{seed}"), own, **whole)
                for name, seeds in nats.items() for seed, own in enumerate(seeds)]  # fmt: skip
        (record,) = paired_records(frame(rows), ("a", 300), ("b", 300), margin=5)
        return record

    record = pair(4)
    assert record["low"] < record["difference"] < record["high"]
    assert record["first"] == pytest.approx(1.2 / 2 / np.log(2))  # of two bytes each
    said = "bits/byte: 4 of 8 windows, of which not every training seed has"
    assert said in capsys.readouterr().err
    assert pair(0) == record
    assert not capsys.readouterr().err


def test_prompts_that_were_dealt_out_over_the_seeds_all_count(capsys):
    say_once.cache_clear()
    rows = [
        make_row(solver="sweep", hidden=0, prompt=prompt)
        | {
            "key": f"{model} {prompt}",
            "checkpoint": about(300, f"{model}{prompt // 4}", f"{model}-s{prompt // 4}"),
        }
        for model in ("flat", "llama")
        for prompt in range(8)
    ]
    (record,) = paired_records(frame(rows), ("flat", 300), ("llama", 300), margin=5)
    assert (record["n"], record["difference"]) == (8, 0)
    assert not capsys.readouterr().err


def test_the_command_pairs_two_lines_or_two_named(tmp_path, capsys):
    Results(tmp_path).append(make_rows(models=("flat", "llama"), layers=(4,), hidden=(0,), count=3))
    assert run_compare(tmp_path, "--last") == 0
    assert "flat, step 300 minus llama, step 300" in capsys.readouterr().out
    assert run_compare(tmp_path, "--paired", "flat@0", "flat") == 0
    printed = capsys.readouterr().out
    assert "flat, step 0 minus flat, step 300" in printed
    assert "3 prompts" in printed
    assert run_compare(tmp_path, "--paired", "flat@7", "flat") == 2
    assert "there are flat@0, flat@300" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{}, {"max_steps": 612}], ids=str)
def test_a_seed_that_was_interrupted_is_said(tmp_path, capsys, given):
    """A killed run of a sweep was averaged with those that ended, as if it were one of them."""
    ends = enumerate((598, 612, 612))
    known = [about(step, str(seed), f"a-s{seed}") | given for seed, step in ends]
    Results(tmp_path).append([loss_row(checkpoint, [3.0]) for checkpoint in known])
    assert run_compare(tmp_path, "--last") == 0
    told = capsys.readouterr()
    assert "598-612" in told.out
    assert ("598-612" in told.err) == bool(given)


def test_a_model_without_a_step_is_the_last_step_of_each_of_its_seeds(tmp_path, capsys):
    """It was the seed with the most steps."""
    rows, ends = [], {"a": [(598, 3.0), (605, 3.1), (612, 3.8)], "b": [(600, 3.2), (620, 3.1)]}
    for name, seeds in ends.items():
        for seed, (step, nats) in enumerate(seeds):
            for at, before in ((300, 4.0), (step, nats)):
                checkpoint = about(at, f"{name}{seed}", f"{name}-s{seed}")
                rows.append(loss_row(checkpoint, [before, nats + 0.1, 3.0]))
    Results(tmp_path).append(rows)
    assert run_compare(tmp_path, "--paired", "a", "b") == 0
    printed = capsys.readouterr().out
    assert "a, step 598-612 minus b, step 600-620" in printed
    assert "2 seeds" in printed
    assert run_compare(tmp_path, "--paired", "a@300", "a") == 0
    assert "3 seeds" in capsys.readouterr().out
    assert run_compare(tmp_path, "--paired", "a@612", "b@600-620") == 0
    assert "3 windows" in capsys.readouterr().out
