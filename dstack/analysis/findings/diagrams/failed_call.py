"""The entry of a failed call in a diagram."""

from __future__ import annotations

from dstack.analysis.findings.kinds.failed import entry_text
from dstack.diagnosis import Entry, FailedBefore


def failed_call(failure: FailedBefore, number: int) -> Entry:
    """``Worker.run   actor "a"   pid 7 on 10.0.0.1``, its line, and its error."""
    node = f" on {failure.node_ip}" if failure.node_ip else ""
    place = (failure.actor or "", f"pid {failure.pid}{node}" if failure.pid else "")
    return Entry(
        number=number,
        name=failure.name,
        place=tuple(filter(None, place)),
        file=failure.file,
        line=failure.line,
        source=failure.source,
        does=entry_text(failure),
        also=("its result is still held, but nothing waits for it",),
    )
