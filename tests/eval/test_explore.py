"""The explorer's server: its answers are those of the commands, and nothing harms it."""

import json
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import eval as evals
from eval import watching
from eval.__main__ import main
from eval.explore.questions import Library
from tests.eval.explore_cases import asked, begin, running, send, two_steps
from tests.said import complaint

TEXT = "Once upon a time there was a dog."
FLAT = "flat, step 10"
SLOW = {"text": f"{TEXT} {TEXT}"[:45], "hidden": list(range(20)), "solvers": ["alternating"]}
"""Minutes of work."""


@pytest.fixture(scope="module")
def models(tmp_path_factory, small_model, small_tokenizer):
    return two_steps(tmp_path_factory.mktemp("runs"), small_model, small_tokenizer)


@pytest.fixture(scope="module")
def port(models):
    with running([str(models)]) as port:
        yield port


@pytest.mark.parametrize(("hidden", "solver"), [([], "propose"), ([2, 5], "alternating")])
def test_solvers_are_watched_until_they_are_right(port, hidden, solver):
    said = asked(port, text=TEXT, models=[FLAT], hidden=hidden)
    (answer,) = [event for event in said if event["type"] == "answer"]
    between = [event for event in said if event["type"] == "tokens"]
    assert answer["solver"] == solver
    assert all(answer["right"])
    assert answer["certificate"]
    assert between[-1]["found"] == answer["found"][: len(between[-1]["found"])]
    assert said[-1] == {"type": "end"}


def test_a_second_question_fits_no_read_back(models):
    library = Library([str(models)], "toy", "cpu")
    library.warm()
    (guesses,) = library.checkpoint(FLAT).kept["readbacks", "toy"].values()
    question = library.question({"text": TEXT, "models": [FLAT]})
    question.run(lambda event: None, lambda: None)
    assert [*library.checkpoint(FLAT).kept["readbacks", "toy"].values()] == [guesses]


def test_a_page_and_a_lens_can_be_opened(port):
    for question in ({"text": TEXT}, {"text": TEXT, "kind": "lens", "lens": "logit"}):
        first, *_, last = asked(port, **question)
        assert last == {"type": "end"}
        for inside in (False, True):
            status, page = send(port, f"/results/{first['name']}{'?inside' * inside}")
            assert status == 200
            assert "<section" in page
            assert ("h1{display:none}" in page) == inside
    assert send(port, "/results/other")[0] == 404


def test_the_copied_command_and_python_give_the_same(port, tmp_path, monkeypatch):
    question = {"text": "-x 'a' \"b\" $HOME\n", "models": ["flat, step 0", FLAT], "hidden": [0, 2]}
    answers = [event for event in asked(port, **question) if event["type"] == "answer"]
    _, look = send(port, "/look", question)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(look["command"])[3:]) == 0
    lines = (tmp_path / "results/explore/rows.jsonl").read_text().splitlines()
    scope: dict = {}
    exec(look["python"], scope)
    for rows in (list(map(json.loads, lines)), scope["result"].rows):
        assert [row["residual"] for row in rows] == [answer["residual"] for answer in answers]


def test_what_is_asked_is_looked_at_first(port):
    for noise, solver in ((0, "propose"), (0.5, "sweep")):
        assert send(port, "/look", {"text": TEXT, "noise": noise})[1]["asked"] == [solver]
    for kind in ("lens", "bits"):
        _, look = send(port, "/look", {"text": TEXT, "kind": kind})
        assert look["command"].startswith(f"python -m eval {kind} ")
        assert look["python"].startswith(f"from eval import {kind}\n")
    said = asked(port, text=TEXT, kind="bits", models=[FLAT])  # token by token
    assert [e["place"] for e in said if e["type"] == "bits"] == [*range(len(look["tokens"]))]


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (b"{", "no JSON"),
        (b"[" * 5000, "no JSON"),
        (b"x" * 20_000, "longer than"),
        ([], "no JSON object"),
        ({"text": 1}, "not str"),
        ({"text": " "}, "type a sentence"),
        ({"text": "a" * 1001}, "1000 at most"),
        ({"text": "a b " * 60}, "at most"),
        ({"text": TEXT, "models": ["../../etc/passwd"]}, "there is no"),
        ({"text": TEXT, "models": [[]]}, "there is no"),
        ({"text": TEXT, "models": [FLAT, "flat, step 0", 3]}, "there is no '3' here"),
        ({"text": TEXT, "kind": "claims"}, "there is no"),
        ({"text": TEXT, "solvers": ["os.system"]}, "there is no"),
        ({"text": TEXT, "lens": "/etc"}, "there is no"),
        ({"text": TEXT, "layer": 3}, "layers 0"),
        ({"text": TEXT, "layer": True}, "not int"),
        ({"text": TEXT, "noise": 1e400}, "between 0 and 16"),
        ({"text": TEXT, "hidden": [99]}, "no token 99; give numbers from 0 to"),
        ({"text": TEXT, "hidden": ["1"]}, "there is no token 1; give numbers"),
        ({"text": "a", "hidden": [0]}, "show one at least"),
    ],
)
def test_what_is_wrong_gets_one_line_and_the_server_lives_on(port, question, says):
    for path in ("/look", "/ask"):
        status, answer = send(port, path, question)
        assert status == 400
        assert says in answer["error"]
        assert "\n" not in answer["error"]
    assert send(port, "/models")[0] == 200


def test_a_solver_that_cannot_answer_says_why_and_the_others_go_on(port):
    said = asked(port, text=TEXT, models=[FLAT], solvers=["alternating", "sweep"])
    (refusal,) = [event for event in said if event["type"] == "refused"]
    assert "needs 1 or more positions hidden" in refusal["text"]
    assert [event["solver"] for event in said if event["type"] == "answer"] == ["sweep"]


def test_other_hosts_and_origins_are_refused_and_no_other_file_is_given(port):
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Host": "192.168.1.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost"}, 200),
    ):
        assert send(port, "/look", {"text": TEXT}, **headers)[0] == status
        assert send(port, "/", **headers)[0] == status
    assert send(port, "/look", {"text": TEXT}, Content_Type="text/plain")[0] == 415
    for path in ("/../questions.py", "/%2e%2e/questions.py", "/static/page.html", "/ask"):
        assert send(port, path)[0] in (404, 405)


def test_every_one_of_200_requests_is_answered(models):
    with running([str(models)], waiting=4) as port:
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(lambda _: begin(port, "/ask", SLOW), range(200)))
        taken = [each for each in answers if each[1].status == 200]
        refused = [json.loads(response.read())["error"] for _, response in answers
                   if response.status == 503]  # fmt: skip
        assert (len(taken), len(refused)) == (5, 195)
        assert all("busy: 4 questions wait" in text for text in refused)
        for connection, _ in answers:  # the pages are gone
            connection.close()
        for _ in range(200):
            status, text = send(port, "/ask", {"text": "a b", "models": [FLAT]})
            if status == 200:
                break
            time.sleep(0.1)
        assert json.loads(text.splitlines()[-1]) == {"type": "end"}


def test_a_question_ends_when_its_time_is_over(models):
    with running([str(models)], seconds=0.5) as port:
        assert "stopped after 0.5 s" in asked(port, models=[FLAT], **SLOW)[-1]["stopped"]


def test_watching_sees_the_answer_grow_and_can_end_the_work(models):
    seen = []
    with watching(lambda progress: seen.append(progress)):
        (row,) = evals.invert(models / "step-000010", text=TEXT, methods="sweep", layers=1).rows
    lengths = [one.tokens.shape[1] for one in seen if one.tokens is not None]
    assert lengths == list(range(1, len(row["truth"]) + 1))
    assert seen[-1].tokens[0].tolist() == row["found"]

    def stop(progress):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"), watching(stop):
        evals.invert(models / "step-000010", text=TEXT, methods="adam", layers=1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "make demo"),
        ("nowhere", "no such directory"),
        (".", "no model directories; `make demo`"),
        ("MODELS --port 99999999", "--port 99999999"),
        ("MODELS --host 203.0.113.7", "--host 203.0.113.7"),
        ("MODELS --device tpu", "--device tpu"),
        ("MODELS", "the explorer needs uvicorn"),
    ],
)
def test_the_command_says_what_is_wrong(words, says, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if words == "MODELS":
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        monkeypatch.delitem(sys.modules, "eval.explore.server")
    assert main(["explore", *words.replace("MODELS", str(models)).split()]) == 2
    assert says in complaint(capsys)
