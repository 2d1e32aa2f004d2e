"""The command `remnant`: `remnant train fit ...`, `remnant eval invert ...`.

It is `python -m` and the room's name: mixers and plugins are found in the working directory.
"""

import sys
from importlib import import_module
from pathlib import Path

ROOMS = {
    "tokenizer": "trains tokenizers and packs text",
    "arch": "makes, imports, exports and describes models",
    "train": "trains models",
    "eval": "asks models what their layers still hold",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command of a room; 0 when it answered, 2 when it could not, 130 after Ctrl-C."""
    room, *words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if room in ROOMS:
        # The working directory last: it may have an arch, or a tokenizers, of its own.
        sys.path[:] = [str(Path(__file__).resolve().parent), *sys.path, ""]
        try:
            return import_module(f"{room}.__main__").main(words)
        except KeyboardInterrupt:
            print("interrupted: what was written stays", file=sys.stderr)
            return 130
    if room in ("-h", "--help"):
        print("usage: remnant ROOM COMMAND ... [--help]\n")
        print("\n".join(f"  {name:10}  {line}" for name, line in ROOMS.items()))
        return 0
    print(f"error: {room}: there is no such room; use {', '.join(ROOMS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
