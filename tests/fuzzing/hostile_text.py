"""Snapshots with an attack in every text that a cluster, a process or a file controls."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dstack.model import Snapshot

ATTACKS = {
    "CSI": "\x1b[2J\x1b[31m",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil/\x1b\\here\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "DCS": "\x1bP+q544e\x1b\\",
    "C1": "\x9b31m\x9d0;owned\x9c\x90q\x85",
    "bidi": "\u202egnp.\u2066x\u2069",
    "overwriting": "Fine.\r\x08\x08\x7f\x0b\x0c",
    "lines": "a\nb\x85c\u2028d\u2029e",
    "NUL": "a\x00b",
    "hidden": "a\u200bb\u2060c\u00add\U000e0041e\ufeff",
}
MARKUP = "[bold red]x[/] [@click=app.quit]y[/] [link=http://evil/]z[/] [/nothing] :smile: [on red]"
HOSTILE = MARKUP + "".join(ATTACKS.values())
GROUP = {
    "library": "torch.distributed",
    "world": HOSTILE,
    "name": HOSTILE,
    "rank": 0,
    "ranks": [0, 1],
    "description": HOSTILE,
}
TEXTS = {
    *(
        "address",
        "autoscaler",
        "cause",
        "class_name",
        "death_cause",
        "dstack_version",
        "entrypoint",
        "error",
        "error_type",
        "file",
        "function",
    ),
    *("hostname", "inferred", "ip", "name", "namespace", "ray_version", "reason", "remedy", "scheduling_state"),
    *("function", "strategy", "submission_id", "unread", "what"),
}
"""Fields with free text."""


def hostile(snapshot: Snapshot) -> Snapshot:
    """The same snapshot with hostile texts; different texts remain different."""
    plain = _hostile(msgspec.to_builtins(snapshot))
    lines = {frame["line"] for frame in plain["frames"]}
    plain["sources"] = {frame["file"]: {str(line): HOSTILE for line in lines} for frame in plain["frames"]}
    plain["notes"] = [HOSTILE]
    plain["failures"] = [{"stage": "stacks", "reason": HOSTILE, "remedy": HOSTILE}]
    for sample in plain["samples"]:
        for worker in sample.get("workers", ()):
            process = worker.get("process") or {}
            process |= {"rank": 0, "labels": {HOSTILE: HOSTILE, "stage": HOSTILE}, "process_groups": [GROUP]}
            for thread in process.get("threads", ()):
                thread["locals"] = {"0": {HOSTILE: HOSTILE}, "1": {"x": HOSTILE}}
    return msgspec.convert(plain, Snapshot, strict=False)


def _hostile(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: item + HOSTILE if key in TEXTS and isinstance(item, str) else _hostile(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_hostile(item) for item in value]
        case _:
            return value


def naming(snapshot: Snapshot, files: list[str]) -> Snapshot:
    """The same snapshot, whose frames are in these files."""
    frames = [replace(frame, file=files[number % len(files)]) for number, frame in enumerate(snapshot.frames)]
    return replace(snapshot, frames=tuple(frames), sources={file: {1: "x"} for file in files})
