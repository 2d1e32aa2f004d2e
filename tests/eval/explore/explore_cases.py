"""A running explorer for tests, and requests as any program can send them."""

import http.client
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from arch import LanguageModel, save_model
from eval.explore.questions import Library
from eval.explore.server import Explorer, serve_beside


def two_steps(place: Path, model: Callable[[], LanguageModel], tokenizer: Tokenizer) -> Path:
    """Saves a model at two training steps into a directory, which it returns."""
    for step in (0, 10):
        meta = {"name": "flat", "step": step}
        save_model(place / f"step-{step:06d}", model(), tokenizer.to_str(), meta)
    return place


def running(places: list[str], **limits: Any) -> AbstractContextManager[int]:
    """The port of an explorer of models that is there for the time of the block."""
    return serve_beside(Explorer(Library(places, "toy", "cpu"), **limits))


def begin(
    port: int, path: str, body: Any = None, **headers: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Posts JSON, or bytes as they are; gets where there is no body: what is answered, unread."""
    with_body = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if body is not None else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, with_body, given)
    return connection, connection.getresponse()


def send(port: int, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the content of what is answered to `begin`."""
    connection, response = begin(port, path, body, **headers)
    try:
        text, kind = response.read(), response.headers["content-type"]
        return response.status, json.loads(text) if kind == "application/json" else text.decode()
    finally:
        connection.close()


def asked(port: int, **question: Any) -> list[dict[str, Any]]:
    """All that comes of a question, when it has ended."""
    status, text = send(port, "/ask", question)
    assert status == 200, text
    return [json.loads(line) for line in text.splitlines()]
