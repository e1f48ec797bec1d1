"""Posts each finding of `dstack watch` to Slack.

    SLACK_WEBHOOK=https://hooks.slack.com/services/... dstack watch --dir snapshots --on-finding 'python3 slack.py'

Needs only Python. Names in a finding come from the application, so what Slack would interpret is escaped.
"""

from __future__ import annotations

import html
import json
import os
import sys
import urllib.request
from typing import Any


def message(finding: dict[str, Any]) -> dict[str, str]:
    """The message, with the fix or what to inspect next."""
    suspected = "" if finding["confirmed"] else "suspected "
    advice = finding["advice"] or {"kind": "next", "text": None}
    lines = {
        advice["kind"].capitalize(): advice["text"],
        "Cluster": finding["address"],
        "Snapshot": finding["file"] and f"dstack show {finding['file']}",
    }
    text = "\n".join(f"{name}: {line}" for name, line in lines.items() if line)
    return {"text": html.escape(f"{suspected}{finding['kind']}: {finding['summary']}\n{text}", quote=False)}


def post(url: str, document: object) -> None:
    """Post a JSON document. Raises :class:`OSError`, so that `dstack watch` reports the failure."""
    data = json.dumps(document).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30):
        pass


if __name__ == "__main__":
    post(os.environ["SLACK_WEBHOOK"], message(json.load(sys.stdin)))
