"""The explorer's server: a page, what it asks, and what comes back while solvers work.

It answers to its own names only (`Host`), to pages of its own only (`Origin`), takes short JSON
bodies, and gives no file but the page's own. Work waits in a bounded queue (`eval.explore.jobs`).
"""

import asyncio
import ipaddress
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from arch import ModelError
from eval import RequestError
from eval.explore.jobs import BusyError, Jobs, QueuedWork
from eval.plots import colours
from tokenizer import CorpusError

if TYPE_CHECKING:
    from eval.explore.asking import OpenModels

STATIC = Path(__file__).parent / "static"
STYLE = Path(__file__).parent.parent / "report" / "templates" / "style.css"
BODY = 16_384
"""Bytes of a question, at most."""
TOGETHER = 64
"""Questions that are read at once; of more, those that come last are told to come again."""
EVERY = 0.03
"""Seconds between looks at a job's events."""
PATIENCE = 15.0
"""Seconds after which a silent connection gets a comment, so that a lost one is noticed."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
OF_EVIDENCE = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; frame-ancestors 'self'"
)
"""The policy of a page of evidence: it may draw, and reach nothing. Vega compiles expressions."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Endpoint = Callable[[Request], Awaitable[Response]]


class Explorer:
    """The routes over one library of models.

    Attributes:
        names: the hosts that it answers to, beside addresses if it is open to others.
    """

    def __init__(
        self, library: "OpenModels", host: str = LOOPBACK[1], jobs: Jobs | None = None
    ) -> None:
        self.library, self.jobs = library, jobs or Jobs()
        self.local = host in LOOPBACK
        self.names = {*LOOPBACK, host}
        self._reading = 0

    def app(self) -> Starlette:
        """The application."""
        read = {
            "/": self._file("text/html", "page.html"),
            "/explore.js": self._file("text/javascript", "explore.js"),
            "/style.css": self._style,
            "/models": self._models,
            "/jobs/{name}/events": self._events,
            "/jobs/{name}/page": self._page,
        }
        posted = {"/look": self._look, "/jobs": self._ask, "/jobs/{name}/stop": self._stop}
        routes = [Route(path, self._guarded(endpoint)) for path, endpoint in read.items()]
        for path, answer in posted.items():
            routes.append(Route(path, self._guarded(self._posted(answer)), methods=["POST"]))
        return Starlette(routes=routes)

    def _refusal(self, request: Request) -> str | None:
        """Why a request is not answered: it is another site's, or meant for another."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if host not in self.names and (self.local or not _is_address(host)):
            return f"host {host[:80]!r} is not this server's"
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.url.scheme}://{request.headers['host']}":
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

    def _posted(self, endpoint: Callable[[Request, Any], Awaitable[Response]]) -> Endpoint:
        """An endpoint that takes JSON; what it refuses is said in one line."""

        async def answer(request: Request) -> Response:
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return _failed("the question must be application/json", 415)
            if self._reading >= TOGETHER:
                return _failed("busy: too many questions at once; try again soon", 503)
            self._reading += 1
            try:
                return await endpoint(request, await _read(request))
            except BusyError as error:
                return _failed(str(error), 503)
            except (RequestError, ModelError, CorpusError, OSError) as error:
                return _failed(str(error), 400)
            finally:
                self._reading -= 1

        return answer

    def _file(self, kind: str, name: str) -> Endpoint:
        async def answer(request: Request) -> Response:
            return Response((STATIC / name).read_bytes(), media_type=kind)

        return answer

    async def _style(self, request: Request) -> Response:
        files = [path.read_text(encoding="utf-8") for path in (STYLE, STATIC / "explore.css")]
        return Response("\n".join([colours(), *files]), media_type="text/css")

    async def _models(self, request: Request) -> Response:
        return JSONResponse(self.library.about())

    async def _look(self, request: Request, given: Any) -> Response:
        ask = await run_in_threadpool(self.library.inquiry, given)
        return JSONResponse(await run_in_threadpool(ask.look))

    async def _ask(self, request: Request, given: Any) -> Response:
        ask = await run_in_threadpool(self.library.inquiry, given)
        job = self.jobs.add(lambda job: ask.run(job.emit, job.check))
        return JSONResponse({"job": job.name, "models": ask.models, "asked": ask.asked})

    async def _stop(self, request: Request, given: Any) -> Response:
        if job := self.jobs.get(request.path_params["name"]):
            job.stopping = "stopped"
            return JSONResponse({})
        return _failed("there is no such question any more", 404)

    async def _events(self, request: Request) -> Response:
        job = self.jobs.get(request.path_params["name"])
        if job is None:
            return _failed("there is no such question any more", 404)
        last = request.headers.get("last-event-id", "")
        first = int(last) + 1 if last.isascii() and last.isdigit() and len(last) < 9 else 0
        return StreamingResponse(self._stream(job, first), media_type="text/event-stream")

    async def _stream(self, job: QueuedWork, number: int) -> AsyncIterator[str]:
        """The job's events from a number on, as server-sent events."""
        job.listeners += 1
        before, silent = None, 0.0
        try:
            while True:
                if job.started is None and (now := self.jobs.before(job)) != before:
                    before, event = now, {"type": "waiting", "before": now}
                    yield f"data: {json.dumps(event)}\n\n"
                while number < len(job.events):
                    event, silent = job.events[number], 0.0
                    yield f"id: {number}\ndata: {json.dumps(event)}\n\n"
                    number += 1
                    if event["type"] == "end":
                        return
                if job.ended:
                    return
                await asyncio.sleep(EVERY)
                silent += EVERY
                if silent > PATIENCE:
                    silent = 0.0
                    yield ": still at work\n\n"
        finally:
            job.listeners -= 1
            job.alone_since = time.monotonic()

    async def _page(self, request: Request) -> Response:
        """Rows and documents of a job as a page of evidence, or what a lens drew."""
        job = self.jobs.get(request.path_params["name"])
        if job is None or job.made is None:
            return _failed("there is nothing to show; ask first", 404)
        try:
            html = await run_in_threadpool(job.made.html)
        except RequestError as error:
            return _failed(str(error), 400)
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


def _failed(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status)


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
        f"--host {host} --port {port}: {reason}; give another port, or 0 for any that is free"
    )


def server(site: Explorer) -> uvicorn.Server:
    """What answers, once its `run(sockets=[...])` is called."""
    quiet = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    return uvicorn.Server(uvicorn.Config(site.app(), timeout_graceful_shutdown=1, **quiet))
