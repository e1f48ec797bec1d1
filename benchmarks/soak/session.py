"""One long session of dstack on a host of the soak: session.py ADDRESS TIMEOUT_S PAUSE_S DIRECTORY

Takes one snapshot after another with the same :class:`dstack.collecting.collector.Collector` until SIGTERM. Prints a
line of JSON for each, with what the soak judges. A snapshot with an alarm, or with a finding `stalled`, is saved in
DIRECTORY with its report.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.soak import SHOWN
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import Collector, Terms
from dstack.errors import DstackError
from dstack.files.snapshot_file import save
from dstack.report.check_json import check_json
from dstack.report.text import report_text


def main() -> None:
    address, timeout_s, pause_s, directory = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    ended = threading.Event()
    collector = Collector(address, Terms(timeout_s))

    def end(*_: object) -> None:
        ended.set()
        threading.Thread(target=collector.cancel).start()  # in a thread, because take() may hold the collector's lock

    signal.signal(signal.SIGTERM, end)
    while not ended.is_set():
        print(json.dumps(one_snapshot(collector, directory)), flush=True)
        ended.wait(pause_s)


def one_snapshot(collector: Collector, directory: Path) -> dict[str, Any]:
    """What the soak judges of one snapshot, or its error."""
    began = time.monotonic()
    try:
        snapshot = collector.take()
    except DstackError as error:
        return {"began": began, "took_s": time.monotonic() - began, "error": str(error)}
    took_s = time.monotonic() - began
    analysed = AnalysedSnapshot.of(snapshot)
    document = json.loads(check_json(analysed))
    kinds = {finding["kind"] for finding in document["findings"]}
    saved = None
    if kinds.intersection(SHOWN):
        saved = directory / f"snapshot-{int(snapshot.taken_at * 1000)}.json.gz"
        save(snapshot, saved)
        saved.with_suffix(".txt").write_text(report_text(analysed))
    vertices = analysed.diagnosis.vertices.values()
    return {
        "began": began,
        "took_s": took_s,
        "judged_s": time.monotonic() - began - took_s,
        "document": document,
        "samples": len(snapshot.samples),
        "executions": sum(vertex.kind == "execution" for vertex in vertices),
        "waits": sum(vertex.wait is not None for vertex in vertices),
        "saved": str(saved) if saved else None,
    }


if __name__ == "__main__":
    main()
