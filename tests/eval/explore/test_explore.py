"""The explorer's server: its answers are those of the commands, and nothing harms it."""

import json
import os
import shlex
import shutil
import socket
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from arch import ModelError, save_model
from arch.storage.files import write_file
from eval.__main__ import main
from eval.explore import questions, server
from eval.explore.questions import Library
from tests.eval.explore.explore_cases import asked, begin, running, send, two_steps

TEXT = "Once upon a time there was a dog."
FLAT = "flat, step 10"
SLOW = {"text": f"{TEXT} {TEXT}"[:45], "hidden": list(range(20)), "solvers": ["alternating"]}
"""Minutes of work."""


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


def test_two_tokens_of_one_vector_have_a_margin_that_json_can_hold(
    tmp_path, small_model, small_tokenizer
):
    model, (first, *_) = small_model(), small_tokenizer.encode(TEXT).ids
    model.embedding.weight[first + 1] = model.embedding.weight[first]
    path = save_model(tmp_path / "twins", model, small_tokenizer.to_str(), {"name": "a", "step": 0})
    library, said = Library([str(path)], "toy", "cpu"), list[dict]()
    question = {"text": TEXT, "layer": 0, "solvers": ["sweep"]}
    library.question(question).run(said.append, lambda: None)
    assert [event["margin"] for event in said if event["type"] == "tokens"].count(None)
    assert json.dumps(said, allow_nan=False)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (b"{", "no JSON"),
        (b"x" * 20_000, "longer than"),
        ([], "no JSON object"),
        ({"text": 1}, "not str"),
        ({"text": "a" * 2001}, "2000 at most"),
        ({"text": TEXT, "models": ["../../etc/passwd"]}, "there is no"),
        ({"text": TEXT, "models": [[]]}, "there is no"),
        ({"text": TEXT, "kind": "claims"}, "there is no"),
        ({"text": TEXT, "solvers": ["os.system"]}, "there is no"),
        ({"text": TEXT, "layer": 3}, "layers 0"),
        ({"text": TEXT, "noise": 1e400}, "between 0 and 16"),
        ({"text": TEXT, "hidden": [99]}, "no token 99; give numbers from 0 to"),
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


def test_a_host_of_any_letters_answers_to_its_name(explored):
    """Requests name it in small ones."""
    with running([str(explored)], host="MyMac.local") as port:
        assert send(port, "/", Host="MyMac.local:80")[0] == 200
        assert "--host NAME" in send(port, "/", Host="other.local")[1]["error"]


def test_questions_wait_in_a_line_that_ends(explored):
    with running([str(explored)], waiting=2) as port:
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: begin(port, "/ask", SLOW), range(20)))
        refused = [json.loads(response.read())["error"] for _, response in answers
                   if response.status == 429]  # fmt: skip
        assert len(refused) == 17  # one is answered, two wait
        assert all("busy: 2 questions wait" in text for text in refused)
        for connection, _ in answers:  # the pages are gone
            connection.close()
        for _ in range(200):
            status, text = send(port, "/ask", {"text": "a b", "models": [FLAT]})
            if status == 200:
                break
            time.sleep(0.1)
        assert json.loads(text.splitlines()[-1]) == {"type": "end"}


def test_a_question_ends_when_its_time_is_over(explored):
    with running([str(explored)], seconds=0.2) as port:
        assert "stopped after 0.2 s" in asked(port, models=[FLAT], **SLOW)[-1]["stopped"]


def test_a_question_that_trickles_in_is_cut(port, monkeypatch):
    monkeypatch.setattr(server, "SECONDS_TO_SEND", 0.2)
    head = f"POST /ask HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sender:
        sender.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        assert b" 408 " in sender.recv(100)
    assert send(port, "/models")[0] == 200


def test_a_connection_on_which_no_request_comes_is_closed(port, monkeypatch):
    monkeypatch.setattr(server, "SECONDS_TO_SEND", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sender:
        sender.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert sender.recv(100) == b""
    assert send(port, "/models")[0] == 200


def test_a_model_may_have_any_name_that_a_file_may_have(tmp_path, small_model, small_tokenizer):
    place = two_steps(tmp_path / os.fsdecode(b"caf\xe9"), small_model, small_tokenizer)
    with running([str(place)]) as port:
        status, known = send(port, "/models")
        (run,) = known["runs"]
        assert (status, len(run["models"])) == (200, 2)
        status, look = send(port, "/look", {"text": TEXT, "models": run["models"][:1]})
        assert (status, look["layers"]) == (200, 2)


def test_a_model_that_is_trained_again_is_opened_again(tmp_path, small_model, small_tokenizer):
    library = Library([str(two_steps(tmp_path, small_model, small_tokenizer))], "toy", "cpu")
    first = library.checkpoint(FLAT)
    assert library.checkpoint(FLAT) is first
    shutil.rmtree(tmp_path / "step-000010")
    with pytest.raises(ModelError, match="no such model directory"):
        library.checkpoint(FLAT)
    two_steps(tmp_path, lambda: small_model(embedding_std=2.0), small_tokenizer)
    assert library.checkpoint(FLAT).config.embedding_std == 2.0  # the earlier one answered


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{}", "tokenizer.json"),
        ("{}", "config.json"),
        ("hf:{}", "model.safetensors"),
        ("hf:{}/m.gguf", "m.gguf"),
    ],
)
def test_a_model_is_opened_again_where_any_of_its_files_is_new(source, name, tmp_path, monkeypatch):
    """Of `hf:` models no file was looked at, of others the weights alone."""
    opened = list[str]()
    monkeypatch.setattr(questions, "open_model", lambda path, *_, **__: opened.append(path))
    for file in ("model.safetensors", "config.json", "tokenizer.json", "m.gguf"):
        (tmp_path / file).write_text("{}")
    (tmp_path / "meta.json").write_text('{"schema": 1, "name": "m", "step": 0}')
    library = Library([source.format(tmp_path)], "toy", "cpu")
    for count in (1, 1, 2):
        if count == 2:
            write_file(tmp_path / name, b"{ }")
        library.checkpoint(*library.paths)
        assert len(opened) == count


def test_a_model_that_reads_no_text_of_ours_is_served(small_model, tmp_path):
    """The explorer ended before it began, for a text that nobody had typed."""
    tokenizer = Tokenizer(models.WordLevel({"A": 0, "C": 1, "G": 2, "T": 3}))  # pyright: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = save_model(tmp_path / "dna", small_model(vocab_size=4), tokenizer.to_str(), {"step": 0})
    corpus, bases = tmp_path / "dna.txt", "ACGT" * 9
    corpus.write_text("<|endoftext|>".join(" ".join(bases[n:]) for n in range(32)))
    library, said = Library([str(path)], str(corpus), "cpu"), list[dict]()
    library.warm()
    library.question({"text": "A C G"}).run(said.append, lambda: None)
    assert [event["right"] for event in said if event["type"] == "answer"] == [[True] * 3]


def test_the_newest_run_stands_first_and_its_ends_are_suggested(
    tmp_path, small_model, small_tokenizer
):
    for name, year in (("old", 1), ("new", 3), ("middle", 2)):
        models = two_steps(tmp_path / name / "models", small_model, small_tokenizer)
        shutil.copytree(models / "step-000010", tmp_path / name / "best")
        shutil.copytree(models / "step-000010", models / ".step-000010.1")  # which is written anew
        for meta in (tmp_path / name).rglob("meta.json"):
            os.utime(meta, (year, year))
    library = Library([str(tmp_path)], "toy", "cpu")
    assert [Path(run).name for run in library.runs] == ["new", "middle", "old"]
    assert all(path in name for name, path in library.paths.items())  # their names are alike
    paths = [library.paths[name] for name in library.suggested]
    assert paths == [str(tmp_path / "new" / "models" / f"step-0000{n}0") for n in (0, 1)]


def test_models_that_share_no_run_are_not_suggested_side_by_side():
    """Their tokenizers cut the first sentence differently, and the page opened in an error."""
    assert Library(["hf:one", "hf:other"], "toy", "cpu").suggested == ["hf:one"]


def test_a_model_leaves_before_another_takes_its_memory(explored, monkeypatch):
    class Opened:
        """Nothing but what can be there or not."""

    made, there = list[weakref.ref[Opened]](), list[int]()

    def opened(*_, **__):
        there.append(sum(model() is not None for model in made))
        made.append(weakref.ref(model := Opened()))
        return model

    monkeypatch.setattr(questions, "open_model", opened)
    monkeypatch.setattr(questions, "OPEN", 1)
    library = Library([str(explored)], "toy", "cpu")
    for name in library.paths:
        library.checkpoint(name)
    assert there == [0, 0]


def test_memory_that_ran_out_is_one_line(port, monkeypatch):
    """It was a fault of the server, or its page said no more than that there was one."""

    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setitem(questions.COMMANDS, "invert", fails)
    assert asked(port, text=TEXT)[-1]["error"].startswith("out of memory; ")
    monkeypatch.setattr(Library, "checkpoint", fails)
    for path in ("/look", "/ask"):
        status, answer = send(port, path, {"text": TEXT})
        assert (status, answer["error"].startswith("out of memory; ")) == (400, True)
