"""The words of waits in the kernel."""

from __future__ import annotations

import signal

from dstack.analysis.naming.ends import SIGNALS, _how


def test_signals_have_the_names_that_linux_gives_them() -> None:
    known = {number.value: number.name for number in signal.Signals if number < signal.SIGRTMIN}

    assert {number: f"SIG{name}" for number, name in enumerate(SIGNALS, 1) if number in known} == known
    assert _how(-signal.SIGSEGV) == "by signal SIGSEGV"
    assert _how(-len(SIGNALS)) == "by signal SIGSYS"
    assert _how(-40) == "by signal 40"
    assert _how(2) == "with exit code 2"
