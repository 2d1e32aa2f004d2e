"""A running explorer for tests, and requests as any program can send them."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from arch import LanguageModel, save_model
from eval.explore.asking import OpenModels
from eval.explore.jobs import Jobs
from eval.explore.server import Explorer, listen, server


def two_steps(place: Path, model: Callable[[], LanguageModel], tokenizer: Tokenizer) -> Path:
    """Saves a model at two training steps into a directory, which it returns."""
    for step in (0, 10):
        meta = {"name": "flat", "step": step}
        save_model(place / f"step-{step:06d}", model(), tokenizer.to_str(), meta)
    return place


@contextmanager
def running(places: list[str], jobs: Jobs | None = None) -> Iterator[int]:
    """The port of an explorer that is there for the time of the block."""
    with listen("127.0.0.1", 0) as at:
        works = server(Explorer(OpenModels(places, "toy", "cpu"), jobs=jobs))
        thread = threading.Thread(target=works.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        while not works.started:
            time.sleep(0.01)
        yield at.getsockname()[1]
        works.should_exit = True
        thread.join(10)


def send(port: int, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Posts JSON, or bytes as they are; gets where there is no body: the status and the answer."""
    with_body = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if body is not None else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, with_body, given)
        response = connection.getresponse()
        text = response.read()
        kind = response.headers["content-type"]
        return response.status, json.loads(text) if kind == "application/json" else text.decode()
    finally:
        connection.close()


def events(port: int, job: str) -> list[dict[str, Any]]:
    """All that a job says, when it has ended."""
    _, text = send(port, f"/jobs/{job}/events")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def asked(port: int, **question: Any) -> list[dict[str, Any]]:
    """What comes of a question."""
    status, answer = send(port, "/jobs", question)
    assert status == 200, answer
    return events(port, answer["job"])
