"""The explorer's server: a page, what it asks, and what comes back while solvers work.

It answers to its own names only (`Host`), to pages of its own only (`Origin`), takes short JSON
bodies, and gives no file but the page's own. One question is at work at a time, in the order in
which they came; it ends when its page is gone.
"""

import asyncio
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.responses import StreamingResponse as Stream
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from arch import ModelError
from arch.errors import is_out_of_memory, printable
from eval.messages import RequestError
from tokenizer import CorpusError

if TYPE_CHECKING:
    from eval.commands.result import Result
    from eval.explore.questions import Library, Question

STATIC = Path(__file__).parent / "static"
FILES = {"/": "page.html", "/explore.js": "explore.js", "/style.css": "explore.css"}
BODY, KEPT = 16_384, 24
"""Bytes of a question, and results whose page can be opened, at most."""
SECONDS_TO_SEND = 10.0
"""A question has arrived by then."""
SECONDS_TO_STOP = 10.0
"""A question that is told to stop has done so by then."""
UNREAD = 1000
"""Events of a question that its page has not read, beyond which tokens are left out."""
SECONDS_BETWEEN_LOOKS = 0.03
"""At a question's events."""
REFUSED = (RequestError, ModelError, CorpusError, OSError)
NO_MEMORY = "out of memory; ask a smaller model, one model alone, or a shorter sentence"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OF_EVIDENCE = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
)
"""The policy of a page of evidence: it may reach nothing."""
INSIDE = """<style>h1{display:none}main{padding-top:0}</style><script>
new ResizeObserver(() => parent.postMessage(document.body.scrollHeight, "*")).observe(document.body)
</script></body>"""
"""Makes a page of evidence a part of the explorer's: no title, as high as what it holds."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Endpoint = Callable[[Request], Awaitable[Response]]


class StoppedError(Exception):
    """The question is to end."""


class Work:
    """A question that waits or is at work in a thread of its own.

    Attributes:
        events: what the page shows, in order; the last is of type "end".
        stopping: why it is to end; empty while it is not.
    """

    def __init__(self, question: "Question", seconds: float) -> None:
        self.question, self.seconds = question, seconds
        self.events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, daemon=True, name="explore")
        self.stopping, self.result, self.until = "", None, float("inf")

    def check(self) -> None:
        """Ends the work where it was stopped or takes too long, by a `StoppedError`."""
        if time.monotonic() > self.until:
            self.stopping = f"stopped after {self.seconds:g} s"
        if self.stopping:
            raise StoppedError(self.stopping)

    def _run(self) -> None:
        self.until, end = time.monotonic() + self.seconds, {}
        try:
            self.result = self.question.run(self._note, self.check)
        except StoppedError as error:
            end = {"stopped": str(error)}
        except REFUSED as error:
            end = {"error": str(error)}
        except Exception as error:
            end = {"error": NO_MEMORY}
            if not is_out_of_memory(error):
                traceback.print_exc(file=sys.stderr)
                end = {"error": "the server met a fault of its own; its terminal says more"}
        self.events.put({"type": "end", **end})

    def _note(self, event: dict[str, Any]) -> None:
        """Keeps an event; of tokens none where a slow page has many to read still."""
        if event["type"] != "tokens" or self.events.qsize() < UNREAD:
            self.events.put(event)

    def news(self) -> list[dict[str, Any]]:
        """What happened since the last look; of tokens that follow each other the last."""
        events: list[dict[str, Any]] = []
        while not self.events.empty():  # nobody else takes from it
            event = self.events.get()
            if events and event["type"] == events[-1]["type"] == "tokens":
                events.pop()
            events.append(event)
        return events


class Explorer:
    """The routes over one library of models.

    Args:
        host: the address that it is served on.
        waiting: questions that may wait, beside the one at work.
        seconds: that one question may take.
    """

    def __init__(
        self, library: "Library", host: str = LOOPBACK[1], waiting: int = 8, seconds: float = 600
    ) -> None:
        self.library, self.most, self.seconds = library, waiting + 1, seconds
        host = host.lower()  # as requests are read
        self.local, self.names = host in LOOPBACK, {*LOOPBACK, host}
        self.queue: list[Work] = []
        self.server: uvicorn.Server | None = None
        self.opening = anyio.CapacityLimiter(1)  # of models; files are served meanwhile
        self.results: OrderedDict[str, Callable[[], str]] = OrderedDict()

    def app(self) -> Starlette:
        """The application."""
        read: dict[str, Endpoint] = {path: self._file(name) for path, name in FILES.items()}
        read |= {"/models": self._models, "/results/{name}": self._page}
        routes = [Route(path, self._guarded(endpoint)) for path, endpoint in read.items()]
        for path, answer in {"/look": self._look, "/ask": self._ask}.items():
            routes.append(Route(path, self._guarded(self._posted(answer)), methods=["POST"]))
        return Starlette(routes=routes)

    @property
    def ending(self) -> bool:
        """Whether the server was told to end, as by Ctrl-C."""
        return self.server is not None and self.server.should_exit

    def close(self) -> None:
        """Stops the questions and waits until none is at work."""
        deadline = time.monotonic() + SECONDS_TO_STOP
        for work in self.queue.copy():
            work.stopping = "the explorer has ended"
            if work.thread.ident is not None:
                work.thread.join(max(0.0, deadline - time.monotonic()))

    def _refusal(self, request: Request) -> str | None:
        """Why a request is not answered: it is another site's, or meant for another."""
        given, host = request.headers.get("host", ""), None
        with suppress(ValueError):  # a bracket that is not closed
            host = urlsplit(f"//{given}").hostname or ""
        if host is None or "@" in given:
            return f"host {printable(given, 80)} is none"
        if host not in self.names and (self.local or not _is_address(host)):
            fix = "localhost" if self.local else "this machine's address"
            return f"host {host[:80]!r} is not this server's; open it by {fix}, or give --host NAME"
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.url.scheme}://{given}":
            return f"origin {origin[:80]!r} may not ask here"
        return None

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            refusal = self._refusal(request)
            response = _failed(refusal, 403) if refusal else await endpoint(request)
            response.headers.setdefault("Content-Security-Policy", POLICY)
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Referrer-Policy"] = "no-referrer"
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    def _posted(self, endpoint: Callable[[Request, "Question"], Awaitable[Response]]) -> Endpoint:
        """An endpoint that takes a question as JSON; what it refuses is said in one line."""

        async def answer(request: Request) -> Response:
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return _failed("the question must be application/json", 415)
            try:
                try:
                    given = await asyncio.wait_for(_read(request), SECONDS_TO_SEND)
                except asyncio.TimeoutError:
                    late = f"the question took longer than {SECONDS_TO_SEND:g} s to send"
                    return _failed(late, 408)
                read = partial(self.library.question, given)
                question = await anyio.to_thread.run_sync(read, limiter=self.opening)
                return await endpoint(request, question)
            except REFUSED as error:
                return _failed(printable(error), 400)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                return _failed(NO_MEMORY, 400)
            except ClientDisconnect:  # nobody is there to read this
                return _failed("the question was not sent to its end", 400)

        return answer

    def _file(self, name: str) -> Endpoint:
        async def answer(request: Request) -> Response:
            return FileResponse(STATIC / name)

        return answer

    async def _models(self, request: Request) -> Response:
        return _Json(self.library.about())

    async def _look(self, request: Request, question: "Question") -> Response:
        return _Json(await run_in_threadpool(question.look))

    async def _ask(self, request: Request, question: "Question") -> Response:
        if len(self.queue) >= self.most:
            waiting = self.most - 1
            return _failed(f"busy: {waiting} questions wait already; try again soon", 429)
        work = Work(question, self.seconds)
        self.queue.append(work)
        return Stream(self._stream(work), media_type="application/x-ndjson")

    async def _stream(self, work: Work) -> AsyncIterator[str]:
        """The events of a question, a line each, while its page is there."""
        name, before, ended = secrets.token_urlsafe(9), 0, False
        about = {
            "models": work.question.models,
            "asked": work.question.chosen_solvers,
            "name": name,
            "tokens": work.question.pieces,
            "hidden": work.question.hidden,
        }
        try:
            yield _line({"type": "question", **about})
            while (now := self.queue.index(work)) and not self.ending:
                if now != before:
                    before = now
                    yield _line({"type": "waiting", "before": now})
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            if not now:
                work.thread.start()  # the next question waits for its end, not for its reader
                threading.Thread(target=self._leave, args=(work,), daemon=True).start()
            while not ended and not self.ending:
                for event in work.news():
                    ended = event["type"] == "end"
                    if ended and work.result:
                        self._keep(name, work.result)
                    yield _line(event)
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            work.stopping = work.stopping or "its page is gone"
            if work.thread.ident is None:
                self.queue.remove(work)

    def _leave(self, work: Work) -> None:
        """Lets the next question begin, when this one's thread has ended."""
        work.thread.join()
        self.queue.remove(work)

    def _keep(self, name: str, result: "Result") -> None:
        self.results[name] = cache(result.html)  # drawn once
        while len(self.results) > KEPT:
            self.results.popitem(last=False)

    async def _page(self, request: Request) -> Response:
        """What came of a question as a page of evidence; `?inside` for a part of the explorer's."""
        result = self.results.get(request.path_params["name"])
        if result is None:
            return _failed("there is nothing to show any more; ask again", 404)
        try:
            html = await run_in_threadpool(result)
        except RequestError as error:
            return _failed(str(error), 400)
        if "inside" in request.query_params:
            html = html.rpartition("</body>")[0] + INSIDE
        return HTMLResponse(html, headers={"Content-Security-Policy": OF_EVIDENCE})


async def _read(request: Request) -> Any:
    """The JSON of a request's body.

    Raises:
        RequestError: too long, or no JSON.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY:
            raise RequestError(f"the question is longer than {BODY} bytes; shorten the text")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the question is no JSON") from None


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event) + "\n"


class _Json(JSONResponse):
    """JSON in ASCII, which holds any name of a file."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


def _failed(text: str, status: int) -> Response:
    return _Json({"error": text}, status)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listen(host: str, port: int) -> socket.socket:
    """A socket that browsers can reach.

    Raises:
        RequestError: the port is taken, or there is no such address here.
    """
    kind, reason = socket.AF_INET6 if ":" in host else socket.AF_INET, "ports end at 65535"
    if port < 65_536:
        try:
            return socket.create_server((host, port), family=kind, backlog=256)
        except OSError as error:
            reason = error.strerror or str(error)
    raise RequestError(
        f"--host {host} --port {port}: {reason}; give an address of this machine, and another "
        "port, or 0 for any that is free"
    )


class _Connection(H11Protocol):
    """A connection that is closed where its first request's head has not come in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Sets the limit."""
        super().connection_made(transport)
        self.loop.call_later(SECONDS_TO_SEND, self._close_without_request)

    def _close_without_request(self) -> None:
        if self.cycle is None:
            self.transport.close()


def server(site: Explorer) -> uvicorn.Server:
    """What answers, once its `run(sockets=[...])` is called."""
    quiet = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    quiet["http"] = _Connection
    site.server = uvicorn.Server(uvicorn.Config(site.app(), timeout_graceful_shutdown=1, **quiet))
    return site.server


@contextmanager
def serve_beside(site: Explorer) -> Iterator[int]:
    """Serves in another thread for the time of the block; the value is the port on this machine."""
    with listen(LOOPBACK[1], 0) as at:
        works = server(site)
        thread = threading.Thread(target=works.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        while not works.started:
            time.sleep(0.01)
        yield at.getsockname()[1]
        works.should_exit = True
        thread.join(SECONDS_TO_STOP)
