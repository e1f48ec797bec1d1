"""The trace processor reads a trace, and rejects what is none."""

from __future__ import annotations

import json

import pytest

from tests.perfetto.trace_processor import trace_processor


def test_a_trace_is_read() -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "a node"}},
        {"ph": "X", "name": "step", "pid": 1, "tid": 2, "ts": 3, "dur": 4},
    ]
    with trace_processor() as processor:
        processor.load(json.dumps({"traceEvents": events}).encode())

        assert processor.query("select name, ts, dur from slice") == [{"name": "step", "ts": 3000, "dur": 4000}]
        assert {"name": "a node"} in processor.query("select name from process")


def test_what_is_no_trace_is_rejected() -> None:
    with trace_processor() as processor, pytest.raises(AssertionError):
        processor.load(b"This is no trace." * 100)
