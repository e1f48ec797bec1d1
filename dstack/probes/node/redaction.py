"""Masks secrets by their names, on the node where a text is read, before it travels.

The texts of values do not escape the quotes in strings, so the end of a secret is unknown: the rest of the text is
dropped, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "***"
LONGEST_COMMAND = 4_000
_CERTAIN = "token|passw|passphrase|pwd|secret|api_?key|access_?key|private_?key|credential|authorization|cookie"
_NAME = re.compile(f"{_CERTAIN}|key|auth|signature|jwt|session_?id", re.IGNORECASE)
_WITHIN = re.compile(rf"(?:{_NAME.pattern})[^\"'\s:=,]*[\"']?\s*[:=,]\s*|\bbearer\s+|\bbasic\s+", re.IGNORECASE)
"""A secret's name, and then its value, in a dict, in pairs, in arguments or in a header."""
_ENVIRONMENT = re.compile(r"environ|^env", re.IGNORECASE)
_VARIABLE = r"\"[A-Z_][A-Z0-9_]{2,}"
_VALUE = r"(?:[\"<]|\.\.\.)"
_VARIABLES = re.compile(rf"{_VARIABLE}(?:\": {_VALUE}|=)|\({_VARIABLE}\", {_VALUE}|<bytes at \w+>: <bytes at")
"""A process's environment as a dict, as pairs or as ``NAME=value``, and inside of ``os.environ``."""
_IN_URL = re.compile(r"://[^/\s\"'@]*@")
_OPTION = re.compile(
    rf"((?<!\S)-[\w-]*(?:{_NAME.pattern})[\w-]*[=\s]\s*|\b\w*(?:{_NAME.pattern})\w*=)(\"[^\"]*\"|'[^']*'|\S+)",
    re.IGNORECASE,
)
_IN_LOG = re.compile(
    rf"(\w*(?:{_CERTAIN})\w*(?<!error)(?<!exception)(?<!warning)(?<!tokens)[\"']?\s*[:=]\s*"
    r"(?:bearer\s+|basic\s+)?|\bbearer\s+)"
    r"(\"[^\"]*\"?|'[^']*'?|[^\s,;&}]+)",
    re.IGNORECASE,
)
"""A secret's name and its value in a line of a log, but no ``TokenError: text`` or ``tokens: 512``."""
_LITERAL = re.compile(
    rf"(\w*(?:{_CERTAIN})\w*[\"']?\]?\s*(?::\s*[\w.\[\]| ]+)?[:=]\s*[rbuf]{{0,2}})(\"[^\"]*|'[^']*)", re.IGNORECASE
)


def masked_local(name: str, text: str) -> str:
    """The text of a local's value, without secrets and without variables of the environment."""
    is_container = text.startswith(("{", "[", "("))
    if _NAME.search(name) or (is_container and _ENVIRONMENT.search(name)) or _VARIABLES.search(text):
        return MASK
    text = _IN_URL.sub(f"://{MASK}@", text)
    found = _WITHIN.search(text)
    return text[: found.end()] + MASK if found else text


def masked_command(text: str) -> str:
    """The beginning of a command line, without the values of options and variables that hold secrets."""
    return _OPTION.sub(rf"\1{MASK}", _IN_URL.sub(f"://{MASK}@", text[:LONGEST_COMMAND]))


def masked_log_line(text: str) -> str:
    """A line of a log without the values that follow names of secrets, and without credentials in URLs."""
    return _IN_LOG.sub(rf"\1{MASK}", masked_command(text))


def masked_source(line: str) -> str:
    """A line of code without the literals that belong to names of secrets."""
    return _LITERAL.sub(lambda match: f"{match[1]}{match[2][0]}{MASK}", line)


def masked_locals(frames: Iterable[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The locals of a stack's frames by the index of the frame, without secrets."""
    return {
        str(index): {name: masked_local(name, text) for name, text in values.items()}
        for index, values in enumerate(frames)
        if values
    }
