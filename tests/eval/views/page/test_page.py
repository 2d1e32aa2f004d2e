"""The page and the terminal's table of recoveries, on made-up rows."""

import re
from importlib.resources import files
from typing import Any

import pytest

from arch.storage.files import write_text
from eval import RequestError
from eval.__main__ import main
from eval.analysis.frame import frame
from eval.drawing import plots
from eval.drawing.tables import cell, percent_text, whole_percent
from eval.inversion.solver import solvers
from eval.rows.store import Results, read_rows
from eval.views.page.numbers import number_tables
from eval.views.page.page import curves, render_page
from eval.views.page.prompts import draw_prompts
from eval.views.page.recoveries import (
    ANSWERS,
    answer_lines,
    recoveries,
    select_lines,
    terminal_text,
)
from tests.eval.views.compare_cases import compared
from tests.eval.views.page.cases import (
    Page,
    about,
    bits_row,
    every_kind,
    expected_share,
    lens,
    loss_row,
    make_row,
    make_rows,
    renamed,
)

ROWS = make_rows(layers=(1, 4), count=4)
QUESTIONS = {"all tokens shown": ("self", 0), "1 hidden token": ("nonself", 1),
             "3 hidden tokens": ("nonself", 3)}  # fmt: skip


@pytest.fixture(scope="module")
def html():
    return render_page(ROWS)


def figures(rows):
    return recoveries(select_lines(frame(rows)))


def found(rows, *names):
    """Fields of the figures of rows."""
    return [tuple(record[name] for name in names) for record in figures(rows)]


def test_the_page_has_them_at_the_deepest_layer_before_and_after_training(html):
    tables = [t for t in Page(html).tables if t[0][0] == "tokens asked for"]
    assert len(tables) == 2
    for model, table in zip(("flat", "llama"), tables, strict=True):
        lines = iter(line for line in table[1:] if line)
        for kind, k in QUESTIONS.values():
            for solver in ("descent", "adam", "alternating" if k else "sweep"):
                place = {"model": model, "layer": 4, "solver": solver}
                shares = [expected_share(ROWS, kind, k, step=step, **place) for step in (0, 300)]
                name, *shown = next(lines)[-3:]
                assert (name, *(cell.split()[0] for cell in shown)) == (
                    solver, *map(whole_percent, shares),
                )  # fmt: skip


def test_the_page_says_what_solvers_do_and_which_steps_it_shows():
    rows = make_rows(models=("flat",), layers=(4,), count=2, steps=(0, 100, 300))
    page = Page(render_page(rows))
    head = next(table[0] for table in page.tables if table[0][0] == "tokens asked for")
    assert head[2:] == ["before, %step 0", "after, %step 300"]
    for said in ("Steps between these two: 100.", "descent, adam: gradient methods, which follow"):
        assert said in page.words


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ({"prompts": 1, "models": 1}, False),
        ({"prompts": 1, "models": 3}, True),
        ({"prompts": 2, "models": 1}, True),
        ({"top_n": 1, "seeds": 1}, False),  # as `compare` has them
        ({"top_n": 1, "seeds": 3}, True),
    ],
)
def test_limits_of_one_prompt_are_shown_where_they_are_over_training_seeds(counts, shown):
    limits = {"top": 0.5, "top_low": 0.25, "top_high": 0.75}
    assert ("(" in cell(limits | counts, "top")) == shown


def test_rows_that_are_no_prompts_have_the_limits_and_the_n_of_their_figures():
    """Every probe and every lens was said to be of one prompt, and had no limits."""
    known = [about(0, weights, f"flat-s{weights}") for weights in "012"]
    probes = [next(row for row in every_kind(own) if row["kind"] == "probe") for own in known]
    probes = [row | {"top1": n / 4} for n, row in enumerate(probes)]
    looked = lens(known[0], 2.0) | {"low": 1.0, "high": 3.0, "n": 8}
    of_lens, of_probes = (table.brief for table in number_tables(frame([*probes, looked])))
    assert of_probes.lines[0][-1] == "3"
    assert "(" in " ".join(of_probes.lines[0])
    assert of_lens.lines[0][-2:] == ["2 (1–3)", "8"]
    one = looked | {"prompts": 1}  # a lens of stories of its own that was asked of one text
    more = one | {"key": "more", "figure": "size", "n": 12}
    (of_lens,) = (table.brief for table in number_tables(frame([one, more])))
    assert of_lens.lines[0][-3:] == ["2 (1–3)", "2 (1–3)", "8–12"]


def test_bits_are_drawn_by_distance_for_each_step(html):
    """They stood in a folded table alone, of 300 lines."""
    prompts = {0: 1, 100: 2, 300: 4}
    page = render_page([bits_row(about(step), prompt, 2.0)
                        for step, count in prompts.items() for prompt in range(count)])  # fmt: skip
    text = Page(page).words
    assert "Each of 40 tokens was put" in text
    assert "so 5.322 bits name the token" in text
    assert "Means over 1 to 4 passages" in text
    for step, count in prompts.items():
        assert re.search(rf"step {step}, 4 later: 2 [^<]*bits, n = {count}\b", page)
    few = render_page([bits_row(about(step), 0, 2.0) for step in range(0, 1200, 100)])
    assert len(set(re.findall(r"step ([\d,]+), 4 later", few)) & {"0", "1,100"}) == 2
    assert len(set(re.findall(r"step ([\d,]+), 4 later", few))) == 6
    assert 'id="bits"' not in html


def test_bits_of_other_parts_are_no_bits_of_the_block(tmp_path, capsys):
    """Rows of both were refused, and those of a mixer stood for its layer's."""
    blocks = [bits_row(about(0), prompt, 2.0) for prompt in range(3)]
    mixers = [row | {"site": {"layer": 4, "part": "mixer"}, "key": f"{row['key']} mixer",
                     "bits": {"uniform": {"noise 0.25 rms": {"alone": [1.0, 1.0]}}}}
              for row in blocks]  # fmt: skip
    alone, both = tmp_path / "alone", tmp_path / "both"
    Results(alone).append(mixers)
    Results(both).append([*blocks, *mixers])
    found = [record["bits_at_4"] for place in (alone, both) for record in compared(place)]
    assert found == [None, 2]
    assert "so 5.322 bits name" in render_page([*blocks, *mixers])
    assert "left out" not in capsys.readouterr().err
    assert 'id="bits"' not in render_page(mixers)
    assert "left out: bits of part mixer" in capsys.readouterr().err


def test_the_terminal_has_them_by_step_in_few_lines():
    rows = make_rows(models=("flat",), layers=(4,), count=4)
    text = terminal_text(rows)
    lines = [line.split() for line in text.splitlines() if "flat" in line]
    assert len(lines) == 6
    for line, (kind, k) in zip(lines[::2], QUESTIONS.values(), strict=True):
        fraction = expected_share(rows, kind, k, model="flat", step=0, layer=4, solver="adam")
        assert percent_text(fraction) in line
    assert text.startswith("Tokens recovered, % (top-1)")
    of_all = terminal_text(ROWS).splitlines()
    assert len(of_all) <= 23
    assert max(map(len, of_all)) <= 160
    few = [make_row("flat", seed=s, solver="adam", share=(1.0, 0.0)) for s in range(ANSWERS)]
    answers = [line for line in terminal_text(few).splitlines() if "adam  " in line]
    assert len(answers) == ANSWERS
    assert all("[" in line.split("adam")[1] for line in answers)
    assert "[b]flat" in terminal_text([renamed(make_row("flat"), "[b]flat")])


def test_an_answer_says_of_which_question_it_is():
    """Those of two noises, controls or parts had one heading."""
    changes = [{}, {"noise": 1.0}, {"control": "shuffled"}, {"site": {"layer": 4, "part": "mixer"}}]
    _, *answers = answer_lines([make_row(key=str(change), **change) for change in changes])
    headings = [answer.partition("descent")[0].split("  ") for answer in answers]
    assert headings == [
        ["", "layer 4", "[:, 3:, :]", ""],
        ["", "layer 4", "[:, 3:, :]", "noise 1", ""],
        ["", "layer 4", "[:, 3:, :]", "control: shuffled", ""],
        ["", "layer 4 mixer", "[:, 3:, :]", ""],
    ]


def test_the_page_is_well_formed_small_and_needs_nothing_else(html):
    page = Page(html)
    assert len(html.encode()) < 1_000_000
    assert not [word for word in ("http", "url(", "@import") if word in html]
    assert not {"src"} & {name for name, _ in page.attributes}
    ids = {value for name, value in page.attributes if name == "id"}
    links = [value for name, value in page.attributes if name == "href"]
    assert links == ["#example", "#training", "#layers", "#prompts", "#numbers"]
    assert {link.removeprefix("#") for link in links} <= ids
    assert "prefers-color-scheme: dark" in html
    for words in ("runs/llama/models/step-000300", "steps=500 rate=0.02", "1,234,567"):
        assert words in page.words  # where it comes from


def test_each_name_of_the_same_weights_has_its_line():
    rows = [loss_row(about(300, "a", name), [3.0]) | {"key": name} for name in ("flat", "copy")]
    (table,) = (t for t in Page(render_page([*rows, *rows])).tables if t[0][0] == "checkpoint")
    assert [line[0] for line in table[1:]] == ["flat", "copy"]


def test_a_solver_of_several_settings_is_described_at_each():
    rows = [make_row(solver="adam"), make_row(solver="adam", settings={"steps": 9}, key="b")]
    assert Page(render_page(rows)).words.count(solvers()["adam"].text) == 2


def test_everything_from_rows_is_escaped_and_any_text_is_written(tmp_path):
    evil = "<script>alert('x')</script>\"><b onmouseover=x>"
    row = make_row(solver="alternating", prompts=evil, settings={evil: evil})
    row = renamed(row, evil)
    row["checkpoint"] |= {"path": evil, "mixers": [evil], "weights_sha256": evil}
    row |= {"truth_text": [evil] * 16, "found_text": [evil] * 16, "text": evil}
    row["site"] = {"layer": 4, "part": evil}
    html = render_page([row, row | {"key": "other", "solver": evil}], title=evil)
    assert html.count("<script>") == 1  # our own
    assert not any(name.startswith("on") for name, _ in Page(html).attributes)
    path = tmp_path / "deep" / "page.html"
    write_text(path, render_page([make_row(text="\ud800 lone")]))
    assert path.stat().st_size > 1000


def test_an_interval_that_is_none_is_not_drawn():
    """Two prompts of one fraction have none: the cell read `33 nan–nan`."""
    rows = [make_row("flat", layer=layer, prompt=prompt) for layer in (2, 4) for prompt in (0, 1)]
    for row, twin in ((rows[0], rows[1]), (rows[2], rows[3])):
        for name in ("self", "nonself"):
            twin[name] = row[name] = row[name] | {"top1": 1 / 3}
    assert not re.search(r"\bnan\b", render_page(rows))


def test_rows_of_which_there_is_nothing_to_say_are_one_clear_line():
    for function in (render_page, figures, terminal_text):
        with pytest.raises(RequestError, match=r"no rows: .* run `python -m eval invert` first"):
            function([])
    with pytest.raises(RequestError, match="1 rows, but none has a scored token"):
        select_lines(frame([make_row(self=None, nonself=None)]))


@pytest.mark.parametrize(
    ("rows", "names", "expected"),
    [
        ([make_row(step=0), make_row(step=100), make_row()], "phase",
         [("before",), ("between",), ("after",)]),
        ([make_row(), renamed(make_row(step=100), "llama-s1")], "phase models", [("after", 2)]),
        ([make_row(site={"layer": 2, "part": "mixer"})], "site", [("2 mixer",)]),
        ([make_row(site={"layer": [1, 3], "part": "block"})], "site", [("3 block 1+3",)]),
        ([make_row(slice="[:, :3+4:, :]", hidden=1)], "tokens",
         [("1 hidden token of [:, :3+4:, :]",)]),
        ([make_row(prompts="random")], "tokens", [("3 hidden tokens, random",)]),
        ([make_row(), make_row(length=24)], "tokens prompts",
         [(f"3 hidden tokens, story of {n} tokens", 1) for n in (16, 24)]),
        ([make_row(corpus="toy"), make_row(prompt=1, corpus="a.txt (1234abcd)"),
          make_row(prompt=2)], "tokens prompts", [(f"3 hidden tokens, story from {corpus}", 1)
                            for corpus in ("a.txt (1234abcd)", "another corpus", "toy")]),
        ([make_row(corpus="toy"), make_row(prompt=1)], "tokens prompts", [("3 hidden tokens", 2)]),
        ([make_row(prompts="text"), make_row(prompts="text", length=24)], "tokens prompts",
         [("3 hidden tokens, text", 2)]),
        ([make_row(solver="adam"), make_row(solver="adam", settings={"steps": 9}, key="b")],
         "solver", [("adam steps=300 rate=0.2",), ("adam steps=9",)]),
        ([make_row(noise=0.5, padded=True), make_row(slice="[:, 3:, :8]", key="b"),
          make_row(control="shuffled", key="c")], "departs",
         [("channels :8",), ("control: shuffled",), ("noise 0.5, padded",)]),
        ([make_row(share=(0.0, 0.0)), make_row(share=(1.0, 1.0))], "top1", [(1.0,)]),
        ([make_row(solver=m, hidden=0) | {"family": f} for m, f in
          (("chance", "control"), ("sweep", "search"), ("descent", "gradient"))
          if m != "chance"], "solver", [("descent",), ("sweep",)]),
    ],
    ids=["phases", "seeds that ended apart", "part", "joined layers", "slice", "prompts",
         "lengths", "corpora", "one corpus", "lengths of texts", "settings", "departures",
         "equal keys", "order of solvers"],
)  # fmt: skip
def test_figures_are_told_apart_by(rows, names, expected):
    assert found(rows, *names.split()) == expected


def test_lines_of_other_prompts_have_other_names():
    kinds = (("story", 16), ("story", 24), ("random", 16), ("text", 4), ("text", 5))
    rows = [make_row(prompts=prompts, length=length) for prompts, length in kinds]
    (table,) = number_tables(frame(rows))
    assert [line[table.brief.headings.index("with")] for line in table.brief.lines] == [
        "random", "story of 16 tokens", "story of 24 tokens", "text, 1 shown", "text, 2 shown",
    ]  # fmt: skip


def test_prompts_of_one_length_have_one_name_whatever_slices_leave_of_them():
    """What lies behind the last position shown is cut before a solver sees the prompt."""
    cut = {"slice": "[:, :2, :]", "shown": [0, 1], "notes": {"cut": 14}}
    rows = [make_row(hidden=0), make_row(hidden=0, length=2, **cut)]
    assert {kind for (kind,) in found(rows, "prompt_kind")} == {"story"}


def test_layers_noise_and_channels_are_curves_and_count_in_nothing_else():
    plain = make_rows(models=("flat",), layers=(2, 4), hidden=(0,), count=2)
    rows = list(plain)
    for row in plain:
        for noise in (0.01, 1.0):
            rows.append(row | {"key": f"{row['key']} {noise}", "noise": noise})
        rows.append(row | {"key": f"{row['key']} :8", "slice": "[:, 0:, :8]"})
    records = figures(rows)
    assert [r for r in records if not r["departs"]] == figures(plain)
    for field, values in {
        "layer": "24",
        "noise": ("0", "0.01", "1"),
        "channels": ("8", "128"),
    }.items():
        (panel,) = curves(records, field)
        assert panel.title == "flat: all tokens shown"
        assert panel.svg.count("<title>") == len(values) * 2 * 3
        assert "sweep, after training: 100 % (34–100), 2 prompts" in panel.svg
        assert all(f">{value}</text>" in panel.svg for value in values)
    assert curves(figures([make_row()]), "layer") == []


@pytest.mark.parametrize("count", [1, 2, 6, 7, 30])
def test_the_legend_of_ordered_lines_has_both_ends(count):
    records = [{"x": x, "step": step, "value": x * step} for x in (0, 1) for step in range(count)]
    spec = plots.lines(records, "x", "y", "step", ordered=True).to_dict()
    legend = spec["layer"][0]["encoding"]["color"].get("legend")
    if count > 1:
        assert legend["values"] == sorted({*legend["values"], 0, count - 1})
        assert len(legend["values"]) == min(count, plots.LISTED)


def drawn(rows):
    lines = select_lines(frame(rows))
    return draw_prompts(rows, lines, recoveries(lines))


def test_tokens_have_their_marks():
    row = make_row(solver="descent", length=5, hidden=2) | {
        "truth": [1, 2, 3, 4, 5],
        "found": [1, 9, 3, 8, 5],
        "truth_text": ["Once", " upon", "\n", "\x07", ""],
        "found_text": ["Once", " cat", "\n", " dog", ""],
        "verdict": ["recovered", "not found", "ambiguous", "not found", "recovered"],
    }
    ((prompt,), known) = drawn([row])
    (sheet,) = prompt.sheets
    assert [text for text, _ in sheet.truth] == ["Once", "·upon", "⏎", "\\x07", "∅"]
    (strip,) = sheet.strips
    assert prompt.name == "Story 0"  # as lenses on the same page call it
    assert (known, strip.solver, strip.phase, strip.right) == (1, "descent", "after", 3)
    assert [text for text, _ in strip.tokens] == ["Once", "·cat", "⏎", "·dog", "∅"]
    assert [marks.split() for _, marks in strip.tokens] == [["k"], ["w", "k"], ["a"], ["w"], []]
    assert '<i class="w k">·cat</i>' in render_page([row])
    tail = make_row(length=4, slice="[:, :2, :]", hidden=2, share=(1.0, 1.0), shown=[0, 1])
    ((prompt,), _) = drawn([tail])
    assert [marks for _, marks in prompt.sheets[0].truth] == ["", "", "k", "k"]


def test_a_text_of_two_numbers_is_one_prompt():
    """As one that was asked of a second model in another order."""
    rows = [make_row(model, prompt=1, prompts="text", key=model) for model in ("flat", "llama")]
    rows[1]["prompt"] = 0
    ((prompt,), known) = drawn(rows)
    assert (prompt.name, known, len(prompt.sheets)) == ("Text 0", 1, 2)


def test_a_solver_of_two_settings_has_its_answers_in_the_prompts():
    """Named with its settings, it was not found among the questions."""
    given = ({"steps": 5}, {"steps": 9})
    rows = [make_row(solver="adam", settings=one, key=str(one)) for one in given]
    ((prompt,), _) = drawn(rows)
    (sheet,) = prompt.sheets
    assert len({strip.solver for strip in sheet.strips}) == len(sheet.strips) == 2


def kinds(row: dict[str, Any]) -> dict[str, Any]:
    """The fields, those of what is nested too; none of free form."""
    free = ("settings", "notes")
    return {k: kinds(v) if isinstance(v, dict) and k not in free else None for k, v in row.items()}


@pytest.mark.parametrize(("solver", "hidden"), [("sweep", 0), ("alternating", 1), ("descent", 3)])
def test_made_up_rows_have_the_fields_of_real_ones(solver, hidden, model_directory, tmp_path):
    asked = ["--solvers", solver, "--slices", f"[:, {hidden}:, :]", "--layers", "1"]
    asked += ["--text", "Once upon a time", *(["--set", "descent.steps=1"] if hidden == 3 else [])]
    out = tmp_path / "out"
    assert main(["invert", str(model_directory()), "--out", str(out), *asked]) == 0
    (real,) = read_rows([out])
    made = make_row(solver=solver, hidden=hidden, length=real["length"])
    assert kinds(made) == kinds(real)
    for name, value in real.items():
        if name not in ("criterion", "permuted", "certificate"):
            assert type(made[name]) is type(value) or None in (made[name], value), name


@pytest.mark.parametrize("page", ["page", "captured"])
def test_every_mark_of_a_legend_has_a_style_of_its_own(page):
    templates = files("eval.views.page") / "templates"
    marks = re.findall(r'<i class="(\w)">', (templates / f"{page}.html").read_text())
    rules = re.findall(r"^\.tokens \.(\w) \{(.*)\}", (templates / "style.css").read_text(), re.M)
    assert marks
    assert set(marks) <= dict(rules).keys()
    assert len({style for _, style in rules}) == len(rules)
