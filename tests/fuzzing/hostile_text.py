"""Snapshots with an attack in every text that a cluster, a process or a file controls."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from msgspec.structs import replace

from dstack.model.recording import Recording
from dstack.model.snapshot import Snapshot, need_of

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
ATTACKED = "hacked"
"""What an attack on a page leaves: a member of ``window``, the name of an element, or part of an attribute's name."""
PAGE_ATTACKS = {
    "script": "</script><script>window.hacked = 1</script>",
    "comment": "<!--<script>window.hacked = 1</script>--!>-->",
    "image": "<img src=x onerror='window.hacked = 1' hacked>",
    "vector": "<svg onload='window.hacked = 1' hacked><script>window.hacked = 1</script></svg>",
    "element": "<hacked></hacked></p></div></details></section></main></template></title></style></textarea>",
    "attribute": '" hacked onmouseover="window.hacked = 1" autofocus onfocus="window.hacked = 1" x="',
    "quote": "' hacked onclick='window.hacked = 1' x='",
    "TeX": "$$\\href{javascript:window.hacked=1}{x} \\require{html} \\class{hacked}{x}$$ \\(x\\) \\[x\\]",
    "template": "{{7*7}} {% raw %} ${window.hacked = 1} @{text}{safe} @$name #{7*7}",
    "style": "}*{background:url(http://hacked.example/)} </style><style>*{background:url(//hacked.example/)}",
    "link": "javascript:window.hacked=1//<a href='javascript:window.hacked=1' hacked>x</a>",
    "frame": "<iframe src='http://hacked.example/' srcdoc='<script>parent.hacked = 1</script>' hacked></iframe>",
    "base": "<base href='//hacked.example/' hacked><meta http-equiv=refresh content='0;url=//hacked.example' hacked>",
    "string": "';window.hacked=1;//\\';window.hacked=1;//\";window.hacked=1;//`;window.hacked=1;//",
    "entity": "&lt;script&gt;window.hacked = 1&lt;/script&gt; &#60;hacked&#62;",
    "lines": "\u2028window.hacked = 1\u2029\r\n",
    "surrogate": "\ud800",
    "member": "__proto__",
}
HOSTILE_TO_PAGES = "".join(PAGE_ATTACKS.values())
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
    *("app", "assumed", "command", "death_reason", "deployment", "driver_ip", "last_error", "method", "node"),
    *("operation", "output", "source", "thread_name", "transfer"),
}
"""Fields with free text."""


def hostile(snapshot: Snapshot, text: str = HOSTILE) -> Snapshot:
    """The same snapshot with a hostile text in all others; different texts remain different."""
    plain = _hostile(msgspec.to_builtins(snapshot), text)
    lines = {frame["line"] for frame in plain["frames"]}
    plain["sources"] = {frame["file"]: {str(line): text for line in lines} for frame in plain["frames"]}
    plain["notes"] = [text]
    plain["failures"] = [{"stage": "stacks", "reason": text, "remedy": text}]
    line = {"text": text[:1000], "kind": "thread exception", "file": text, "line": 1}
    plain["log_tails"] = [
        {"path": text, "stream": "stderr", "written_at": 1.0, "lines": [line], "worker_id": worker["worker_id"]}
        for worker in plain["workers"]
    ]
    for sample in plain["samples"]:
        for worker in sample.get("workers", ()):
            process = worker.get("process") or {}
            process |= {"rank": 0, "labels": {text: text, "stage": text}, "process_groups": [_group(text)]}
            began_at = plain["taken_at"] - 1.0
            process["finished_spans"] = [{"name": text, "began_at": began_at, "ended_at": began_at + 0.5}]
            for thread in process.get("threads", ()):
                thread["locals"] = {"0": {text: text}, "1": {"x": text}}
            for one in (*process.get("threads", ()), *process.get("coroutines", ())):
                one["spans"] = [{"name": text, "began_at": began_at, "frame": 0}]
    return msgspec.convert(plain, Snapshot, strict=False, dec_hook=need_of)


def hostile_recording(recording: Recording, text: str) -> Recording:
    """The same recording with a hostile text in all others."""
    plain = _hostile(msgspec.to_builtins(recording), text)
    plain["failures"] = [{"stage": "stacks", "reason": text, "remedy": text}]
    return msgspec.convert(plain, Recording, strict=False)


def _group(text: str) -> dict[str, Any]:
    members = {"world": text, "name": text, "description": text}
    return {"library": "torch.distributed", "rank": 0, "ranks": [0, 1], **members}


def _hostile(value: Any, text: str) -> Any:
    match value:
        case dict():
            return {
                key: item + text if key in TEXTS and isinstance(item, str) else _hostile(item, text)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_hostile(item, text) for item in value]
        case _:
            return value


def naming(snapshot: Snapshot, files: list[str]) -> Snapshot:
    """The same snapshot, whose frames are in these files."""
    frames = [
        dataclasses.replace(frame, file=files[number % len(files)]) for number, frame in enumerate(snapshot.frames)
    ]
    return replace(snapshot, frames=tuple(frames), sources={file: {1: "x"} for file in files})
