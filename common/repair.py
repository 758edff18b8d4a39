"""Broken text of a trace -> events that can be decoded, one by one. Each rule names the fault that it mends."""

import json
import re
from collections.abc import Iterator

# Where an event ends and the next begins. Lists of objects inside an event's arguments do not begin like this.
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*(?:"(?:ph|cat|name|ts|pid|tid|args|id|dur|bp|s)"\s*:|\}))')
KEY = rb'"[^"\\\n]{1,60}"\s*:'
RULES = (
    # control characters in a string (pytorch#130622); between tokens a space serves as well as a newline
    (re.compile(rb"[\x00-\x1f]"), b" "),
    # a backslash that starts no escape: Windows paths (kineto#617, #750)
    (re.compile(rb'(?<!\\)((?:\\\\)*)\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})'), rb"\1\\\\"),
    # values that are no JSON: inf, nan, N/A (kineto#105)
    (re.compile(rb"(?<=[:\[,])\s*(?:[-+]?(?:inf(?:inity)?|nan)|N/A)\s*(?=[,}\]])", re.IGNORECASE), b"null"),
)
STRING = re.compile(rb'(' + KEY + rb'\s*")(.*?)("\s*(?=,\s*' + KEY + rb"|\}|\Z))")  # fmt: skip


def split(piece: bytes) -> Iterator[tuple[int, bytes]]:
    """(start, text) of each event in `piece`; a comma or a ] after the last one is left out."""
    start = 0
    for boundary in BOUNDARY.finditer(piece):
        yield start, piece[start : boundary.start() + 1]
        start = boundary.end()
    if last := _first_object(piece[start:]):
        yield start, last


def _first_object(text: bytes) -> bytes:
    """The object that `text` begins with; where it is broken, up to the } before the last ], else all of it."""
    plain = text.decode("utf-8", "replace").lstrip()
    if not plain.startswith("{"):
        return b""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(plain)
        return plain[:end].encode()
    except (ValueError, RecursionError):
        ends = list(re.finditer(rb"\}\s*\]", text))
        return text[: ends[-1].start() + 1] if ends else text


def mend(text: bytes) -> bytes:
    text = text.decode("utf-8", "replace").encode()  # bytes that are no UTF-8 (kineto#988)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    # a quote inside a string (kineto#1459, #1508): a string ends where a key or a brace follows
    return STRING.sub(lambda m: m[1] + re.sub(rb'(?<!\\)"', rb'\\"', m[2]) + m[3], text)
