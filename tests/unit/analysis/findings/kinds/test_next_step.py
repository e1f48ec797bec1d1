"""The next step: one thing to inspect, where no change is known to resolve a finding."""

from __future__ import annotations

import pytest

from dstack.model.diagnosis import Advice
from dstack.observed.processes import Frame
from tests.unit.analysis.findings.kinds.small_findings import only_finding
from tests.unit.scenes import Scene


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("/venv/ray/util/rpdb.py", "Run `ray debug`: a breakpoint is open in work at train.py:12"),
        (
            "/venv/ray/util/debugpy.py",
            "Attach the Ray Distributed Debugger: a breakpoint is open in work at train.py:12",
        ),
    ],
)
def test_an_open_breakpoint_is_the_next_step(file: str, words: str) -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.gets(call)
    worker.slots[0].leaf = Frame(function="listen", file=file, line=7, origin="ray")
    worker.slots[0].outer = (Frame(function="work", file="/app/train.py", line=12, origin="user"),)

    advice = only_finding(scene.diagnose()).advice

    assert advice is not None
    assert (advice.kind, advice.text.startswith(words)) == ("next", True)


def test_advice_is_printed_with_its_kind() -> None:
    assert str(Advice(kind="fix", text="Take it.")) == "Fix: Take it."
    assert str(Advice(kind="next", text="See it.")) == "Next: See it."
