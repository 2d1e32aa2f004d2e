"""The command `explore`: a page in the browser that asks models about one's own sentence."""

import contextlib
from pathlib import Path

from arch.storage.runs import SHIPPED, shipped_models
from eval.commands.flags import AboveZero, Natural, Places, listed
from eval.commands.result import Result, command
from eval.messages import RequestError, say
from eval.models import TRUST_CODE

DEMO = "demo"
"""Where `make demo` puts its models."""


@command
def explore(
    runs: Places = (),
    port: Natural = 8765,
    host: str = "127.0.0.1",
    corpus: str | None = None,
    device: str = "auto",
    seconds: AboveZero = 600.0,
) -> Result:
    """Serves a page: type a sentence, hide tokens, watch solvers recover them.

    It listens on the loopback address until it is interrupted (Ctrl-C). Anyone who reaches the page
    may use this machine's time: another --host is for networks that you trust.

    Args:
        runs: model directories, runs, directories of those, or hf:NAME; default: the models of
            `make demo` in demo/, else those of the repository
        port: port of the page's address; 0: any that is free
        host: address to listen on; with 127.0.0.1 only this machine reaches the page
        corpus: source of the text that solvers guess from, bits are calibrated on and lenses are
            fitted on; default: the data that a model was trained on
        seconds: most seconds that one question may take
    """
    from eval.explore.questions import Library
    from eval.models.checkpoint import PRETRAINED, device_of

    try:
        from eval.explore.server import Explorer, listen, server
    except ModuleNotFoundError as error:
        raise RequestError(
            f"the explorer needs {error.name}; fix, in the checkout: pip install -e '.[explore]'"
        ) from None

    device_of(device)
    places = list(map(str, listed(runs)))
    if not places:
        places = [DEMO] if Path(DEMO).is_dir() else list(map(str, shipped_models()))
    if not places:
        raise RequestError(
            f"no models given, and no {DEMO}/ here: `make demo` makes two in minutes, or give "
            "model directories, as in: python -m eval explore runs"
        )
    for place in places:
        named = place.startswith((PRETRAINED, SHIPPED)) or "@" in place
        if not named and not Path(place).exists():
            raise RequestError(f"{place}: no such directory; give model directories or runs")
    library = Library(places, corpus, device, TRUST_CODE.get())
    with listen(host, port) as at:
        say(f"opening {' and '.join(library.suggested)} ...")
        library.warm()
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{at.getsockname()[1]}/"
        print(f"{len(library.paths)} checkpoints at {url}  (Ctrl-C ends it)", flush=True)
        site = Explorer(library, host, seconds=seconds)
        with contextlib.suppress(KeyboardInterrupt):
            server(site).run(sockets=[at])
        site.close()
    return Result([], "the explorer has ended")
