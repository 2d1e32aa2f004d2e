"""Tokens that files beside a tokenizer.json name: which of them the tokenizer itself lacks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.config import parse_object
from arch.errors import printable, say, show_value
from arch.storage.directory import token_ids
from arch.storage.files import read_json

SETTINGS, ADDED_TOKENS = "tokenizer_config.json", "added_tokens.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_NAMING = (SETTINGS, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
"""Files that may name tokens beside a tokenizer.json."""
_ENDS = ("config.json", "generation_config.json", SPECIAL_TOKENS_MAP, SETTINGS)
"""Files that say what begins and ends a text; the later one holds."""
SPECIAL_TOKEN = re.compile(r"(?:bos|eos|unk|sep|pad|cls|mask)_token")
SPECIAL_TOKENS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("normalized", "lstrip", "rstrip", "single_word")
"""What of an added token changes how a text is split; the first where a normalizer is."""


def say_left_out_tokens(directory: Path, tokenizer_json: str) -> None:
    """Says on stderr which tokens files of a directory add to those of its tokenizer itself.

    Raises:
        ModelError: one of them is no JSON.
    """
    known = parse_object(tokenizer_json, str(directory))
    ids = token_ids(known) | {e["content"]: e.get("id") for e in known.get("added_tokens") or ()}
    for file in _existing(directory, _NAMING):
        held = read_json(file)
        named = _named_tokens(held, file.name)
        _say_what_is_added(held, known, file)
        _say_other_flags(held, known, file)
        others = {
            text: f"{text} as {token}" if token else text
            for text, token in named
            if text not in ids or token not in ("", str(ids[text]))
        }
        ids |= dict.fromkeys(others)  # said once
        if others:
            say(
                f"{directory}: {file.name} names {printable(', '.join([*others.values()][:3]))}, "
                "which tokenizer.json does not; its tokens are those of tokenizer.json"
            )


def named_roles(held: dict[str, Any]) -> dict[str, str]:
    """The tokens that a file names as those that begin and end a text."""
    found = {role: held.get(role) for role in ("bos_token", "eos_token")}
    named = {r: t.get("content") if isinstance(t, dict) else t for r, t in found.items()}
    return {role: token for role, token in named.items() if isinstance(token, str) and token}


def read_ends(directory: Path, tokenizer_json: str) -> dict[str, Any]:
    """The `ends_of_text` as files of a directory name them.

    The ids that a configuration names as `eos_token_id` are read by `read_stops`.

    Raises:
        ModelError: one of them is no JSON.
    """
    roles: dict[str, str | None] = {}
    ids: Any = None
    for file in _existing(directory, _ENDS):
        held = read_json(file)
        roles |= named_roles(held)
        for section in (held.get("text_config"), held):  # that of a model that reads pictures too
            ids = section.get("eos_token_id", ids) if isinstance(section, dict) else ids
    return read_stops(ids, tokenizer_json) | ends_of_text(roles)


def read_stops(ids: object, tokenizer_json: str) -> dict[str, Any]:
    """The `stops` among the ids of a configuration, which are added tokens, and the `end`.

    Some configurations hold another tokenizer's default, which may be an added run of blanks.
    """
    added = parse_object(tokenizer_json, "its tokenizer").get("added_tokens") or ()
    known = {t["id"]: t["content"] for t in added if t.get("special") or t["content"].strip()}
    listed = ids if isinstance(ids, list) else [ids]
    stops = [known[number] for number in listed if type(number) is int and number in known]
    return {"end": stops[0], "stops": stops} if stops else {}


def ends_of_text(roles: Mapping[str, str | None]) -> dict[str, str]:
    """The tokens around a text, where they are named: its `begin` and its `end`.

    A text begins with the BOS, else with the EOS, as lm-evaluation-harness has it.
    """
    end = roles.get("eos_token")
    ends = {"begin": roles.get("bos_token") or end, "end": end}
    return {role: token for role, token in ends.items() if token}


def _existing(directory: Path, names: Sequence[str]) -> list[Path]:
    return [file for name in names if (file := directory / name).is_file()]


def _say_what_is_added(held: dict[str, Any], tokenizer: dict[str, Any], file: Path) -> None:
    """Says on stderr what a file has put around each text, and the tokenizer does not.

    That is a special token, or a blank before the text.
    """
    splits, around = tokenizer.get("pre_tokenizer"), repr(tokenizer.get("post_processor"))
    steps = (splits.get("pretokenizers") or [splits]) if isinstance(splits, dict) else []
    made = [step.get("add_prefix_space") for step in steps if isinstance(step, dict)]
    said = held.get("add_prefix_space")
    if isinstance(said, bool) and (not said) in made:
        say(
            f"{file.parent}: {file.name} says add_prefix_space {said}, tokenizer.json {not said}; "
            "texts are read as tokenizer.json says"
        )
    for name in ("fast_tokenizer_files", "split_special_tokens"):
        if held.get(name):
            say(
                f"{file.parent}: {file.name} says {name} {show_value(held[name])}; texts are read "
                "as tokenizer.json says"
            )
    for role, token in named_roles(held).items():
        if held.get(f"add_{role}") is True and repr(token) not in around:
            say(
                f"{file.parent}: {file.name} says add_{role}, tokenizer.json adds no "
                f"{printable(token)} to a text; texts are asked without it"
            )


def _say_other_flags(held: dict[str, Any], tokenizer: dict[str, Any], file: Path) -> None:
    """Says on stderr which added tokens a file finds in a text otherwise than the tokenizer does.

    As one that takes the blanks behind it.
    """
    flags = FLAGS if tokenizer.get("normalizer") else FLAGS[1:]
    entries = {entry.get("content"): entry for entry in tokenizer.get("added_tokens") or ()}
    listed = held.get("added_tokens_decoder")
    others = [
        f"{flag} {show_value(about[flag])} of {entry['content']}"
        for about in (listed.values() if isinstance(listed, dict) else ())
        if isinstance(about, dict) and (entry := entries.get(str(about.get("content"))))
        for flag in flags
        if flag in about and about[flag] != entry.get(flag)
    ]
    if others:
        say(
            f"{file.parent}: {file.name} says {printable(', '.join(others[:3]))}, tokenizer.json "
            "does not; texts are read as tokenizer.json says"
        )


def _named_tokens(held: dict[str, Any], file: str) -> Iterator[tuple[str, str]]:
    """The tokens that a file names, with their ids where it says these."""
    if file == ADDED_TOKENS:
        yield from ((text, str(token)) for text, token in held.items())
        return
    for name, value in held.items():
        if name == "added_tokens_decoder" and isinstance(value, dict):
            entries = [(about, str(token)) for token, about in value.items()]
        elif SPECIAL_TOKEN.fullmatch(name):
            entries = [(value, "")]
        elif name in SPECIAL_TOKENS and isinstance(value, dict | list):
            listed = value.values() if isinstance(value, dict) else value
            entries = [(about, "") for about in listed]
        else:
            continue
        for about, token in entries:
            text = about.get("content") if isinstance(about, dict) else about
            if isinstance(text, str) and text:
                yield text, token
