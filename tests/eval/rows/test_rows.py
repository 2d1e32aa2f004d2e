"""Rows that come from a file: those that do not hold what their kind declares are refused."""

import copy
import gzip
import json
from contextlib import suppress

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.storage.files import POINTER
from eval import RequestError
from eval.__main__ import main
from eval.analysis.frame import frame
from eval.analysis.summary import summary_records
from eval.captured.task import describe_rows
from eval.lenses.documents import read_document
from eval.rows.store import Results, read_rows
from eval.rows.tasks import open_results
from eval.views.page.captured import read_lines
from tests.eval.views.page.cases import SIZES, bits_row, checkpoint_of, every_kind, make_row
from tests.said import complaint, one_line

ABOUT = make_row()["checkpoint"]
CAPTURED = {
    "key": "c", "kind": "captured", "checkpoint": ABOUT, "tensor": "block.1", "prompt": 0,
    "site": "block.1", "sites_tried": [], "format": "fp32", "computed": "fp32", "solver": "propose",
    "text": "ab", "tokens": [5, 6], "pieces": ["a", "b"], "certificates": ["residual", None],
    "grades": ["certain", "likely"], "probabilities": [1.0, 0.999], "left_out": [],
    "residual_over_floor": {"0": 1.0, "1": 9.0}, "alike": {}, "alike_pieces": {}, "evaluations": 9,
}  # fmt: skip
ROWS = {row["kind"]: {"schema": 3, **row} for row in [
    make_row(), bits_row(ABOUT, 0, 2.0), *every_kind(ABOUT), CAPTURED
]}  # fmt: skip


def changed(row, path, value):
    """A copy of a row with another value at a path, or without it."""
    row = copy.deepcopy(row)
    *folders, name = path.split(".")
    place = row
    for folder in folders:
        place = place[folder]
    if value is KeyError:
        del place[name]
    else:
        place[name] = value
    return row


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("recovery", "checkpoint", KeyError),
        ("recovery", "checkpoint", []),
        ("recovery", "checkpoint.name", 5),
        ("recovery", "checkpoint.step", "last"),
        ("recovery", "checkpoint.mixers", "flat"),
        ("recovery", "site", {}),
        ("recovery", "site.layer", None),
        ("recovery", "site.layer", []),
        ("recovery", "site.part", 1),
        ("recovery", "site.without", "norms"),
        ("recovery", "truth", [1, "2"]),
        ("recovery", "truth", []),
        ("recovery", "found", [1]),
        ("recovery", "rank", [True] * 16),
        ("recovery", "self.count", "4"),
        ("recovery", "residual", 1e999),
        ("recovery", "residual", float("nan")),
        ("recovery", "length", 10**30),
        ("recovery", "length", -1),
        ("recovery", "notes", None),
        ("recovery", "notes.cut", 1 << 40),
        ("recovery", "hidden", 1 << 31),
        ("recovery", "collisions", [{}]),
        ("recovery", "shown", [0, 99]),
        ("recovery", "shown", [-1]),
        ("recovery", "exact", not ROWS["recovery"]["exact"]),
        ("loss", "parts", {"nats": [1.0], "bytes": [0]}),
        ("loss", "parts", {"nats": [1.0, 2.0], "bytes": [3]}),
        ("loss", "nats_per_token", "high"),
        ("bits", "bits", {"uniform": {"noise 0.25 rms": {"alone": [1.0]}}}),
        ("bits", "distances", [0, None]),
        ("lens", "value", "5"),
        ("lens", "prompts", None),
        ("probe", "unigram", 1.0),
        ("geometry", "sigma_min", KeyError),
        ("captured", "grades", ["certain", "certain"]),
        ("captured", "grades", ["likely", "likely"]),
        ("captured", "grades", ["certain"]),
        ("captured", "left_out", [-1]),
        ("captured", "left_out", [2]),
        ("captured", "sites_tried", [{"hits": 1}]),
        ("captured", "probabilities", [1.0, None]),
        ("captured", "wrong", 5),
    ],
)
def test_a_row_that_lacks_what_its_kind_declares_is_refused(kind, path, value, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    good = [json.dumps({**row, "key": name}) for name, row in ROWS.items()]
    file.write_text("\n".join(good) + "\n")
    assert len(read_rows([tmp_path])) == len(ROWS)
    file.write_text("\n".join([*good, json.dumps(changed(ROWS[kind], path, value))]) + "\n")
    assert main(["summary", str(tmp_path)]) == 2
    line = complaint(capsys)
    assert line.startswith(f"error: {file}, line {len(ROWS) + 1}: ")
    assert len(line) < 400


@pytest.mark.parametrize(
    ("grade", "chance", "limit"), [("likely", 0.99997, "1"), ("unknown", 0.9899, "0.99")]
)
def test_a_chance_does_not_read_as_what_it_is_below(grade, chance, limit):
    """1 is that of a token that is certain, and from 0.99 on one is likely."""
    own = {"grades": ["certain", grade], "probabilities": [1.0, chance], "relative_residual": 0.0}
    row = ROWS["captured"] | own
    page, shown = read_lines(row)[1].said, describe_rows("block.1", [row])
    assert "(p >" in page
    assert f"(p {limit})" not in page
    assert ("p >0.98" in shown) == (grade == "unknown")


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)
FIELDS = [(kind, name) for kind, row in ROWS.items() for name in row]


@given(field=st.sampled_from(FIELDS), value=TREES)
@settings(derandomize=True, max_examples=100, deadline=None)
def test_whatever_a_field_holds_is_summed_up_or_refused(field, value, tmp_path_factory):
    kind, name = field
    place = tmp_path_factory.mktemp("rows")
    (place / "rows.jsonl").write_text(json.dumps(ROWS[kind] | {name: value}) + "\n")
    with suppress(RequestError):
        lines = frame(read_rows([place]))
        assert lines.empty or len(summary_records(lines[lines["kind"] == kind]))


NO_ROWS = ["5", "[]", "null", '"a"', "{", '{"schema": 3, "key": []}', "[" * 99_999,
           '{"schema": 3, "key": "a", "kind": []}', '{"schema": 3, "key": "\\ud800"}',
           '{"schema": 3, "key": "\ud800"}', '{"schema": 3, "key": "a", "size": NaN}',
           '{"schema": 3, "key": "a", "kind": "b", "kind": "c"}']  # fmt: skip


@pytest.mark.parametrize("line", NO_ROWS)
def test_a_line_that_is_no_row_is_refused_by_its_number(line, tmp_path, capsys):
    text = f"{json.dumps({'schema': 2, **make_row()})}\n{line}\n"
    (tmp_path / "rows.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert main(["summary", str(tmp_path)]) == 2
    assert f"{tmp_path / 'rows.jsonl'}, line 2: " in complaint(capsys)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_pointer_of_git_is_fetched_and_no_line_of_it_deleted(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(POINTER + b"v1\noid sha256:4d\nsize 12345\n")
    assert main(["summary", str(tmp_path / name)]) == 2
    assert "git lfs pull" in complaint(capsys)


def test_a_mark_of_utf_8_and_empty_lines_are_passed_over(tmp_path):
    """As editors and `cat` leave them: to delete line 1, as the refusal said, lost a good row."""
    line = json.dumps({"schema": 3, **make_row()}).encode()
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n  \n")
    assert [row["key"] for row in read_rows([tmp_path])] == [make_row()["key"]]


def test_a_schema_that_is_a_text_is_shown_as_one(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text(json.dumps({**make_row(), "schema": "3"}) + "\n")
    assert main(["summary", str(tmp_path)]) == 2
    assert "schema '3', allowed is 3" in complaint(capsys)


ROW = json.dumps({"schema": 3, **make_row()})
NEVER_TORN = {
    "array": f"[{ROW}]",
    "UTF-16": ROW.encode("utf-16"),
    "UTF-16 without a mark": ROW.encode("utf-16-le"),
    "packed": gzip.compress(ROW.encode()),
    "table": "key,kind\ra,recovery",
    "name twice": ROW.replace('"kind"', '"kind": "loss", "kind"'),
    "no number": ROW.replace('"residual": ', '"residual": NaN, "old": '),
}


@pytest.mark.parametrize("name", NEVER_TORN)
def test_a_file_without_line_ends_is_no_torn_row_to_pass_over_or_to_cut_off(name, tmp_path):
    content = NEVER_TORN[name]
    content = content.encode() if isinstance(content, str) else content
    (tmp_path / "rows.jsonl").write_bytes(content)
    with one_line(RequestError, "rows.jsonl, line 1: "):
        read_rows([tmp_path])
    with one_line(RequestError, "rows.jsonl, line 1: "):
        Results(tmp_path)
    assert (tmp_path / "rows.jsonl").read_bytes().rstrip(b"\n") == content.rstrip(b"\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\0\0", '\r{"schema": 3, "key": "tor'])
def test_line_ends_of_other_systems_and_zeros_of_a_disk_lose_no_row(end, tmp_path):
    rows = [{"schema": 3, **make_row(prompt=prompt)} for prompt in range(2)]
    (tmp_path / "rows.jsonl").write_text(end[0].join(map(json.dumps, rows)) + end, newline="")
    assert read_rows([tmp_path]) == rows


def test_rows_of_one_key_that_contradict_each_other_are_said(tmp_path, capsys):
    # How many prompts were searched at once is no part of an answer.
    alike = {"seconds": 9.0, "batch": 9, "candidates_at_once": 9}
    for name, change in [("a", {}), ("b", alike), ("c", {"residual": 9.0})]:
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(json.loads(ROW) | change) + "\n")
    read_rows([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert not capsys.readouterr().err
    (row,) = read_rows([tmp_path / "a.jsonl", tmp_path / "c.jsonl"])
    assert row["residual"] == 9.0
    assert "c.jsonl: 1 rows differ" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rows.parquet", "rows.PARQUET", "download"])
def test_a_table_is_known_by_its_content(name, tmp_path):
    row = {"schema": 3, **make_row()}
    pandas.DataFrame({"row": [json.dumps(row)]}).to_parquet(tmp_path / name)
    assert read_rows([tmp_path / name]) == [row]


def test_rows_of_a_kind_that_is_not_known_are_refused(tmp_path, capsys):
    """Whatever their fields hold."""
    row = {"schema": 3, **make_row(kind="recall", windows=[1])}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
    assert "recall" in complaint(capsys)


def test_rows_that_do_not_say_their_kind_are_refused(tmp_path, capsys):
    row = {name: value for name, value in make_row().items() if name != "kind"}
    (tmp_path / "rows.jsonl").write_text(json.dumps({"schema": 3, **row}) + "\n")
    assert main(["summary", str(tmp_path)]) == 2
    assert "line 1" in complaint(capsys)


def test_a_page_needs_no_path_and_no_size_of_a_model(tmp_path):
    row = make_row()
    about = row["checkpoint"].items()
    row["checkpoint"] = {name: x for name, x in about if name not in ("path", "parameters")}
    (tmp_path / "rows.jsonl").write_text(json.dumps({"schema": 3, **row}) + "\n")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[]", b'{"lens": "logit"}', b"[" * 99_999, b'"\\ud800"']
)
def test_a_damaged_document_of_a_lens_is_refused_by_its_path(content, tmp_path):
    path = tmp_path / "logit-1.json"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=str(path)):
        read_document(path)


def test_a_call_that_failed_keeps_no_directory_though_its_error_is_kept(tmp_path):
    """As a notebook does, and loops that collect errors."""
    errors = []
    for _ in range(2):
        try:
            with open_results(str(tmp_path)):
                raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            errors.append(error)
    assert len(errors) == 2


def test_a_directory_is_written_by_one_at_a_time_and_read_by_all(tmp_path):
    first = Results(tmp_path)
    first.append([make_row(key="first")])
    with pytest.raises(RequestError, match=r"--shard"):
        Results(tmp_path)
    assert [row["key"] for row in read_rows([tmp_path])] == ["first"]
    Results(tmp_path, (1, 2)).append([make_row(key="second")])  # a shard has a file of its own
    del first
    assert Results(tmp_path).keys == {"first", "second"}


def test_two_models_of_one_name_are_two_lines_with_every_seed(tmp_path, capsys):
    def asked(model, share):
        about = checkpoint_of(ABOUT, name="flat", weights_sha256=model * 32, **{SIZES[0]: 8})
        return make_row(key=model, checkpoint=about | {"model_id": f"flat-{model}"}, share=share)

    Results(tmp_path).append([asked("aa", (1.0, 1.0)), asked("bb", (0.0, 0.0))])
    for words in ([], ["--every-seed"]):
        assert main(["compare", str(tmp_path), "--format", "json", *words]) == 0
        records = json.loads(capsys.readouterr().out)
        assert {record["model"] for record in records} == {"flat (aa)", "flat (bb)"}


def test_a_whole_last_row_without_an_end_of_line_counts(tmp_path):
    rows = [make_row(prompt=prompt) | {"schema": 3} for prompt in range(3)]
    file = tmp_path / "rows.jsonl"
    whole = "\n".join(map(json.dumps, rows[:2]))
    for torn in ("", '\n{"schema": 3, "key": "to'):
        file.write_text(whole + torn)
        assert [row["key"] for row in read_rows([tmp_path])] == [row["key"] for row in rows[:2]]
        Results(tmp_path).append(rows[2:])
        assert [row["key"] for row in read_rows([file])] == [row["key"] for row in rows]


@pytest.mark.parametrize("cells", [[1], [None], [b"{}"], [["{}"]]])
def test_a_table_of_other_cells_is_one_line(cells, tmp_path):
    pytest.importorskip("pandas").DataFrame({"row": cells}).to_parquet(tmp_path / "a.parquet")
    with one_line(RequestError, "a.parquet"):
        read_rows([tmp_path / "a.parquet"])


def test_a_copy_of_results_counts_once(tmp_path):
    for name in "ab":
        Results(tmp_path / name).append([make_row(prompt=0)])
    Results(tmp_path / "b").append([make_row(prompt=1)])
    assert len(read_rows([tmp_path / "a", tmp_path / "b"])) == 2
