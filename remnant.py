"""The command `remnant`: `remnant train fit ...`, `remnant eval invert ...`.

It is `python -m` and the room's name.
"""

import sys
from importlib import import_module

ROOMS = {
    "tokenizer": "trains tokenizers and packs text",
    "arch": "makes, imports, exports and describes models",
    "train": "trains models",
    "eval": "asks models what their layers still hold",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command of a room; 0 when it answered, 2 when it could not."""
    room, *words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if room in ROOMS:
        return import_module(f"{room}.__main__").main(words)
    if room in ("-h", "--help"):
        print("usage: remnant ROOM COMMAND ... [--help]\n")
        print("\n".join(f"  {name:10}  {line}" for name, line in ROOMS.items()))
        return 0
    print(f"error: {room}: there is no such room; use {', '.join(ROOMS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
