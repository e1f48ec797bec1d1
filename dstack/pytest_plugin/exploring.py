"""Runs a test on other schedules, each time in a pytest process and on clusters of its own, until it hangs."""

from __future__ import annotations

import sys
import time
from typing import Literal

import pytest

from dstack.errors import DstackError
from dstack.explore.program_runs import ProgramRuns
from dstack.explore.search import Exploration, Search
from dstack.explore.texts import hang_lines, none_lines
from dstack.pytest_plugin.inspection import saved_under
from dstack.pytest_plugin.options import SECTION, PluginSettings, marked_timeout_s
from dstack.report.text import report_text

LIMIT_S = 120.0
"""The longest time of one run, unless the test has another limit."""


def explore_test(item: pytest.Item, settings: PluginSettings) -> None:
    """Run a test and report its outcome: it fails if its plain run fails, or if any run hangs."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    began = time.time()
    text, failed = _explored(item, settings)
    outcome: Literal["failed", "passed"] = "failed" if failed else "passed"
    report = pytest.TestReport(
        item.nodeid,
        item.location,
        dict.fromkeys(item.keywords, 1),
        outcome,
        text if failed else None,
        "call",
        () if failed else ((f"Captured {SECTION}", text),),
        time.time() - began,
        began,
        time.time(),
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _explored(item: pytest.Item, settings: PluginSettings) -> tuple[str, bool]:
    """What to say about a test, and whether it fails."""
    command = _command(item)
    try:
        limit_s = marked_timeout_s(item, settings) or LIMIT_S
        with ProgramRuns(command, limit_s, directory=item.config.rootpath) as runs, Search(runs) as search:
            exploration = search.explore(0, settings.explore)
    except DstackError as error:
        return f"The test could not be explored. {error}", True
    if (found := exploration.found) is not None and found.analysed is not None:
        saved = saved_under(settings, item.nodeid, found.analysed.snapshot)
        lines = "".join(f"{line}\n" for line in hang_lines(exploration, ["python", *command[1:]]))
        return f"{report_text(found.analysed)}\n{lines}{saved}", True
    if _fails_by_itself(exploration):
        return "\n".join(("The test fails without any change:", *exploration.runs[0].last_lines)), True
    return "\n".join(none_lines(exploration)), False


def _fails_by_itself(exploration: Exploration) -> bool:
    return len(exploration.runs) == 1 and exploration.runs[0].result == "failed"


def _command(item: pytest.Item) -> list[str]:
    """Pytest for this test alone, with the options of this session; options for several processes do not apply."""
    config = item.config
    given = [str(one) for one in config.invocation_params.args if one not in config.option.file_or_dir]
    options = [one for one in given if not one.startswith(("--dstack-explore=", "--dstack-dir="))]
    alone = ["-n0"] if config.pluginmanager.hasplugin("xdist") else []
    return [sys.executable, "-m", "pytest", *options, "--dstack-explore=0", *alone, item.nodeid]
