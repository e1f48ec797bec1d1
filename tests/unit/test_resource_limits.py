"""What the system does not allow dstack is told as that, with the limit to raise, and not as a mistake of dstack's."""

from __future__ import annotations

import errno

import pytest
from click.testing import CliRunner

from dstack.cli import main
from dstack.collector import Collector


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "dstack may not open as many files as it needs."),
        (RuntimeError("can't start new thread"), "dstack may not start as many processes and threads as it needs."),
        (
            BlockingIOError(errno.EAGAIN, "unavailable"),
            "dstack may not start as many processes and threads as it needs.",
        ),
        (MemoryError(), "dstack gets no more memory."),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "dstack gets no more memory."),
        (ValueError("odd"), "dstack itself failed: ValueError: odd"),
    ],
)
def test_a_limit_is_told_as_one(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Collector, "take", fail)

    done = CliRunner().invoke(main, ["check"])

    assert done.exit_code == 3
    assert done.output.splitlines()[0] == f"Error: {said}"
    assert len(done.output.splitlines()) == 2
