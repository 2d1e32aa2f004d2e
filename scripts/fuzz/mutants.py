"""Mutants of files: a valid file with one or a few changes that its format gives a meaning to.

A mutator takes bytes and a random generator and gives other bytes. `MUTATORS` has one for each
format; every one of them also damages bytes as they are, now and then.
"""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import yaml

Mutator = Callable[[bytes, random.Random], bytes]

DAMAGE = 0.2
"""Probability that bytes are damaged as they are, whatever they stand for."""
WORDS = (
    "", "a", "\x00", "\x1b]0;x\x07", "\u202e", "\ud800", "../../x", "none", "0", "-1", "1e400",
    "os.system", "a" * 5000, "[" * 3000, "{" * 3000, "$(x)", "%s", "\n", "é", "🐶",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e-300, 1e300)
HEADERS = (
    b"Host: [", b"Host: [::1", b"Host: a]b", b"Host: x.com@localhost", b"Host:", b"Origin: null",
    b"Content-Type: text/plain", b"Content-Length: 5", b"Content-Length: -1",
    b"Transfer-Encoding: chunked", b"X: " + b"y" * 9000,
)  # fmt: skip
PATHS = (
    b"/", b"/look", b"/ask", b"/results/x", b"/%00", b"/../etc", b"//", b"/" * 99,
    b"/static/%2e%2e/x", b"/look?a=%ff",
)  # fmt: skip
CONSTANTS = (None, True, False, float("nan"), float("inf"), [], {}, [[]], [None], {"": None})


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, doubles, moves or overwrites some bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 64, 1024)))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end]
        elif kind == 4:
            data[at:end] = bytes(end - at)
        elif kind == 5:
            data[at:end] = rng.randbytes(end - at)
        else:
            number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1))
            data[at : at + 8] = struct.pack("<Q", number)
    return bytes(data)


def mutate_value(value: Any, rng: random.Random) -> Any:
    """One entry of a tree of dictionaries and lists is changed, dropped, doubled or renamed."""
    entries = list(_entries(value))
    if not entries:
        return _odd_value(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, key = rng.choice(entries)
        if key not in (holder if isinstance(holder, dict) else range(len(holder))):
            continue  # dropped by the change before
        kind, found = rng.randrange(8), holder[key]
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(WORDS) or f"{key}_"] = holder.pop(key)
        elif kind == 2 and isinstance(found, list) and found:
            holder[key] = found * rng.choice((2, 3, 50)) if len(found) < 100 else found[:1]
        elif kind == 3 and isinstance(found, int | float | str):
            holder[key] = str(found) if not isinstance(found, str) else rng.choice(NUMBERS)
        elif kind == 4 and isinstance(found, int | float) and not isinstance(found, bool):
            factor = rng.choice((0, -1, 2, 1000, 10**9, 0.5))
            holder[key] = found * factor if abs(found) < 2**53 else factor
        elif kind == 5:
            other, name = rng.choice(entries)
            if name in (other if isinstance(other, dict) else range(len(other))):
                holder[key] = json.loads(json.dumps(other[name], default=str))
        else:
            holder[key] = _odd_value(rng)
    return value


def _entries(value: Any) -> Any:
    """Every pair of a dictionary or list and a key of it."""
    todo, count = [value], 0
    while todo and count < 5000:
        holder = todo.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(min(len(holder), 64))
            for key in keys:
                yield holder, key
                todo.append(holder[key])
                count += 1


def _odd_value(rng: random.Random) -> Any:
    kind = rng.randrange(4)
    if kind == 3:
        deep: Any = 0
        for _ in range(rng.choice((3, 50, 900))):
            deep = [deep]
        return deep
    return rng.choice((WORDS, NUMBERS, CONSTANTS)[kind])


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """A changed JSON text, at times with a key twice."""
    if rng.random() < DAMAGE:
        return mutate_bytes(content, rng)
    value = mutate_value(json.loads(content), rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if isinstance(value, dict) and value and rng.random() < 0.05:
        key = rng.choice(list(value))
        text = text[:-1] + f", {json.dumps(key)}: {json.dumps(_odd_value(rng))}" + "}"
    return text.encode("utf-8", "surrogatepass")


def mutate_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON a line: one line is changed, dropped, doubled, cut or followed by something else."""
    if rng.random() < DAMAGE:
        return mutate_bytes(content, rng)
    lines = content.splitlines()
    number, kind = rng.randrange(len(lines)), rng.randrange(8)
    if kind == 0:
        lines.insert(number, rng.choice((b"", b"\0\0\0", b"5", b"null", b"[]", b"\xef\xbb\xbf")))
    elif kind == 1:
        lines.insert(number, lines[number])
    else:
        lines[number] = mutate_json(lines[number], rng)
    end = rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r"))
    return end.join(lines) + rng.choice((end, b"", b"{"))


def mutate_yaml(content: bytes, rng: random.Random) -> bytes:
    """A changed YAML text: its tree, or anchors, tags and indentation."""
    if rng.random() < DAMAGE:
        return mutate_bytes(content, rng)
    if rng.random() < 0.3:
        lines = content.decode().splitlines()
        added = rng.choice((
            "a: &a [x, x]\nb: [*a, *a]", "x: !!python/object/apply:os.system ['true']", "- 1",
            "? {a: 1}\n: 2", "<<: {seed: 3}", "seed: 1e999", "~: 1", "\t", "%YAML 9.9", "--- \n---",
            "seed: 2026-01-01", "seed: 0o17", "seed: 1_000", "*missing", "a: {b: [c", "seed: yes",
        ))  # fmt: skip
        lines.insert(rng.randrange(len(lines) + 1), added)
        return "\n".join(lines).encode()
    value = mutate_value(yaml.safe_load(content), rng)
    return json.dumps(value).encode("utf-8", "surrogatepass")  # JSON is YAML too


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """The header is changed as JSON, or the numbers as bytes."""
    if rng.random() < DAMAGE:
        return mutate_bytes(content, rng)
    (size,) = struct.unpack("<Q", content[:8])
    header, numbers = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.3:
        value = rng.choice((0.0, float("nan"), float("inf"), 1e38, -1e38, 1e-38))
        at = 4 * rng.randrange(max(1, len(numbers) // 4))
        count = rng.choice((1, 16, len(numbers) // 4 - at // 4))
        odd = struct.pack("<f", value) * count
        return content[: 8 + size] + numbers[:at] + odd + numbers[at + len(odd) :]
    header = mutate_json(header, rng)
    return struct.pack("<Q", len(header)) + header + numbers


def mutate_npy(content: bytes, rng: random.Random) -> bytes:
    """The header's words are changed, or bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(content, rng)
    end = content.index(b"\n") + 1
    header = content[10:end].decode("latin-1")
    was, becomes = rng.choice((
        ("<f4", ">f4"), ("<f4", "<f8"), ("<f4", "<i4"), ("<f4", "|O"), ("<f4", "<c8"),
        ("<f4", "|V2"), ("<f4", "<U4"), ("<f4", "|b1"), ("<f4", "f4,f4"), ("False", "True"),
        ("(", "(-1, "), ("(", "(0, "), ("(", "(1000000000000, "), ("(", "(("), ("shape", "form"),
        ("{", "["), ("}", "} + 1"), ("'", '"'), ("<f4", "__import__('os')"),
    ))  # fmt: skip
    changed = header.replace(was, becomes, 1).encode("latin-1")
    return content[:8] + struct.pack("<H", len(changed)) + changed + content[end:]


def mutate_text(content: bytes, rng: random.Random) -> bytes:
    """Line ends, byte-order marks, encodings and odd characters of a text."""
    kind = rng.randrange(6)
    if kind == 0:
        return mutate_bytes(content, rng)
    if kind == 1:
        return content.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\0", b"\xe2\x80\xa8", b"")))
    if kind == 2:
        encoding = rng.choice(("utf-16", "utf-8-sig", "latin-1", "utf-32"))
        return content.decode().encode(encoding, "replace")
    at = rng.randrange(len(content))
    odd = rng.choice((b"\xff", b"\xed\xa0\x80", b"\0", b"<|endoftext|>", b"<|pad|>", b"\x1b[31m",
                         b"x" * 20_000))  # fmt: skip
    return content[:at] + odd + content[at:]


def mutate_request(content: bytes, rng: random.Random) -> bytes:
    """An HTTP request: its body as JSON, or its lines."""
    kind = rng.randrange(4)
    head, _, body = content.partition(b"\r\n\r\n")
    if kind == 0:
        return mutate_bytes(content, rng)
    lines = head.split(b"\r\n")
    if kind == 1:
        number = rng.randrange(len(lines))
        lines[number if rng.random() < 0.3 else len(lines) - 1] = rng.choice(HEADERS)
    elif kind == 2:
        method, _, rest = lines[0].partition(b" ")
        path = rng.choice(PATHS)
        method = rng.choice((method, b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"X"))
        lines[0] = method + b" " + path + b" " + rest.rpartition(b" ")[2]
    elif body:
        body = mutate_json(body, rng)
        lines = [b"Content-Length: %d" % len(body) if line.startswith(b"Content-Length") else line
                 for line in lines]  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


MUTATORS: dict[str, Mutator] = {
    "bytes": mutate_bytes,
    "json": mutate_json,
    "lines": mutate_lines,
    "yaml": mutate_yaml,
    "safetensors": mutate_safetensors,
    "npy": mutate_npy,
    "text": mutate_text,
    "request": mutate_request,
}
