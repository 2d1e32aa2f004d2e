"""Where and how each kind of row was measured: the coordinates that tell figures apart.

Figures of rows that differ in a coordinate are never pooled unasked.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from eval.messages import say_once
from eval.rows.schema import Row
from eval.rows.store import row_key


def fields(row: Row, names: Sequence[str]) -> dict[str, Hashable]:
    """Plain fields, of the row or its site; fields that a row lacks are left out."""
    values = {name: row.get(name, row.get("site", {}).get(name)) for name in names}
    return {
        name: "+".join(map(str, value)) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def of_lens(row: Row) -> dict[str, Hashable]:
    """Every short field of a lens's row, but for those of every row."""
    short = (name for name, value in row.items() if isinstance(value, str | int | float))
    names = [name for name in short if name not in NOT_COORDINATES]
    return fields(row, ["layer", "part", *(n for n in names if n not in ("layer", "part"))])


BITS = ("layer", "part", "corpus", "place", "candidates", "prior", "precision", "shown", "distance")
OF_LOSS = ("key", "kind", "checkpoint", "corpus", "texts", "stories", "windows", "bytes")
NOT_COORDINATES = {
    "schema", "key", "kind", "checkpoint", "site", "settings", "family", "figure", "value", "low",
    "high", "n", "reason", "text", "truth", "prompt", "seed", "seconds", "device", "look",
}  # fmt: skip
"""Fields of rows that are no coordinates."""


def of_recovery(row: Row) -> dict[str, Hashable]:
    """The deepest layer of those shown together; the others are named by the part: `block 1+3`."""
    layer, part = row["site"]["layer"], row["site"].get("part", "block")
    if isinstance(layer, list):
        layer, part = max(layer), f"{part} {'+'.join(map(str, layer))}"
    return {
        "layer": layer,
        "part": part,
        "slice": row["slice"],
        "hidden": row["hidden"],
        "observed": row["observed"],
        "prompt_kind": row["prompts"],
        "without": ", ".join(row["site"].get("without") or ()),
        "noise": row["noise"] or 0.0,
        "control": row["control"] or "",
        "padded": bool(row["padded"]),
        "solver": row["solver"],
        "family": row["family"],
        "settings": _written(row["settings"]),
    }


def of_loss(row: Row) -> dict[str, Hashable]:
    """Texts that were given in a corpus's place are named by their hash, or their bytes."""
    known = row.get("texts") or f"{row.get('bytes')} bytes"
    corpus = row["corpus"] or f"text ({known})"
    return {"windows": "joined", **fields(row, ("stories", "windows")), "corpus": corpus}


def of_probe(row: Row) -> dict[str, Hashable]:
    """On which text, how long, and how a probe was fitted; seeds of the fit are pooled."""
    others = {n: v for n, v in row["settings"].items() if n not in ("corpus", "seed")}
    about = {"corpus": row["settings"].get("corpus"), "settings": _written(others)}
    return fields(row, ("layer", "part", "offset", "method")) | about


def of_geometry(row: Row) -> dict[str, Hashable]:
    """With the length and the corpus of the prompts, which are asked for."""
    return fields(row, ("layer", "part", "hidden", "corpus")) | {"prompt_length": row["length"]}


def of_bits(row: Row) -> dict[str, Hashable]:
    """A passage of a story, or a text that was given, named by the hash of its tokens."""
    text = f" ({row_key(row['tokens'])[:8]})" if row["prompts"] == "text" else ""
    return fields(row, BITS) | {"prompt_kind": f"{row['prompts']}{text}"}


def last_looks(rows: Iterable[Row]) -> list[Row]:
    """Rows without a lens's earlier looks at a model: of several the last counts, as on the page.

    A look is one lens, model and request: figures of other texts are no samples of one.
    """
    rows = list(rows)
    last = {looked_at(row): row["look"] for row in rows if row.get("look")}
    earlier = {row["look"]: looked_at(row)[:2] for row in rows
               if row.get("look") and row["look"] != last[looked_at(row)]}  # fmt: skip
    for lens, name in dict.fromkeys(earlier.values()):
        say_once(f"lens {lens} looked at {name} more than once; its last look counts")
    return [row for row in rows if row.get("look") not in earlier]


def looked_at(row: Row) -> tuple[Hashable, ...]:
    """The lens of a row of one, and its model at one training step."""
    about = row["checkpoint"]
    return row["lens"], about["name"], about["step"], about["weights_sha256"]


def tell_texts_apart(rows: Iterable[Row]) -> list[Row]:
    """Rows whose corpus has one name and other texts name the text too: its hash, or its bytes.

    A file is written anew under its name, and models hold out other fractions of one file. A text
    of several names, as each run packs it into its own directory, has the first of them.
    """
    rows, hashes = list(rows), dict[str, set[str]]()
    for row in rows:
        if corpus := _corpus_of(row):
            hashes.setdefault(corpus, set()).update(filter(None, [row.get("corpus_hash")]))
    first = dict[str, str]()  # of one hash, the name that comes first
    names = {name: first.setdefault(min(known), name) if len(known) == 1 else name
             for name, known in hashes.items()}  # fmt: skip
    corpora = [names.get(_corpus_of(row) or "") for row in rows]
    sizes = dict[Any, set[int]]()
    for row, corpus in zip(rows, corpora, strict=True):
        if row["kind"] == "loss":  # in rows of other kinds these names may hold anything
            question = corpus, row["stories"], row.get("windows")
            sizes.setdefault(question, set()).add(row["bytes"])
    told = []
    for row, corpus in zip(rows, corpora, strict=True):
        if corpus:
            about = []
            if len(hashes[corpus]) > 1:
                about.append(str(row.get("corpus_hash") or "another text")[:8])
            if row["kind"] == "loss" and len(sizes[corpus, row["stories"], row.get("windows")]) > 1:
                about.append(f"{row.get('bytes')} bytes")
            if about:
                say_once(f"corpus {corpus} is not one text; its figures are told apart")
                corpus = f"{corpus} ({', '.join(about)})"
            row = row | ({"settings": {**row["settings"], "corpus": corpus}}
                         if row["kind"] == "probe" else {"corpus": corpus})  # fmt: skip
        told.append(row)
    return told


def say_trained_again(rows: Iterable[Row]) -> None:
    """Says where models of one path and name differ in their weights, and so count as seeds."""
    known: dict[tuple[Any, ...], set[str]] = {}
    for about in (row["checkpoint"] for row in rows):
        which = about.get("path"), about["name"], about["model_id"], about["step"]
        known.setdefault(which, set()).add(about["weights_sha256"])
    again = [which[0] for which, weights in known.items() if which[0] and len(weights) > 1]
    if again:
        say_once(
            f"{again[0]}: rows of several models that lay there are pooled as training seeds; give "
            "--out another directory where a run is trained again"
        )


def _corpus_of(row: Row) -> str | None:
    """The corpus of a row's figures; of recoveries and lenses, prompts say what is asked."""
    if row["kind"] == "probe":
        return row["settings"].get("corpus")
    return row["corpus"] if row["kind"] in ("loss", "bits") else None


def _written(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())
