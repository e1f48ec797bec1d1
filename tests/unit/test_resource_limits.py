"""A resource limit of the system is reported with the limit to raise, and not as an internal error."""

from __future__ import annotations

import errno

import pytest
from click.testing import CliRunner

from dstack.cli import main
from dstack.collecting.collector import Collector


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "dstack reached the limit of open files."),
        (RuntimeError("can't start new thread"), "dstack reached the limit of processes and threads."),
        (
            BlockingIOError(errno.EAGAIN, "unavailable"),
            "dstack reached the limit of processes and threads.",
        ),
        (MemoryError(), "dstack ran out of memory."),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "dstack ran out of memory."),
        (ValueError("odd"), "Internal error in dstack: ValueError: odd"),
    ],
)
def test_a_limit_is_reported_as_a_limit(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Collector, "take", fail)

    done = CliRunner().invoke(main, ["check"])

    assert done.exit_code == 3
    assert done.output.splitlines()[0] == f"Error: {said}"
    assert len(done.output.splitlines()) == 2
