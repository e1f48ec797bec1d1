"""Triggers a PagerDuty incident for each finding of `dstack watch`, by the Events API v2.

    PAGERDUTY_KEY=... dstack watch --dir snapshots --on-finding 'python3 pagerduty.py'

PAGERDUTY_KEY is the integration key of the service. Needs only Python. A restarted watch reports a finding again; it is
the same incident, because the key for deduplication is made of its tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.request
from typing import Any

URL = os.environ.get("PAGERDUTY_URL", "https://events.pagerduty.com/v2/enqueue")
MAX_SUMMARY = 1024
"""The most characters that PagerDuty takes."""


def event(finding: dict[str, Any], key: str) -> dict[str, object]:
    """The event that triggers an incident."""
    tasks = sorted(member["task_id"] or member["execution"] for member in finding["members"])
    same = "\n".join((finding["address"], finding["kind"], *tasks))
    suspected = "" if finding["confirmed"] else "suspected "
    return {
        "routing_key": key,
        "event_action": "trigger",
        "dedup_key": "dstack-" + hashlib.sha256(same.encode()).hexdigest()[:32],
        "payload": {
            "summary": f"{suspected}{finding['kind']}: {finding['summary']}"[:MAX_SUMMARY],
            "source": finding["address"],
            "severity": "warning" if finding["kind"] == "stalled" else "critical",
            "timestamp": finding["taken_at"],
            "component": "Ray",
            "class": finding["kind"],
            "custom_details": {"advice": finding["advice"], "snapshot": finding["file"], "page": finding["page"]},
        },
    }


def post(url: str, document: object) -> None:
    """Post a JSON document. Raises :class:`OSError`, so that `dstack watch` reports the failure."""
    data = json.dumps(document).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30):
        pass


if __name__ == "__main__":
    post(URL, event(json.load(sys.stdin), os.environ["PAGERDUTY_KEY"]))
