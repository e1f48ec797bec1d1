"""Fails a test that leaves a deadlock or hang in the cluster; each finding fails one test only."""

from __future__ import annotations

import sys

import pytest

from dstack.errors import DstackError
from dstack.pytest_plugin.settings import SECTION, Settings


def fail_if_stuck(item: pytest.Item, settings: Settings) -> None:
    """Takes a snapshot after a test that passed, if it is connected to a cluster or an address is given."""
    __tracebackhide__ = True
    if "ray._private.worker" not in sys.modules and not settings.address:
        return
    from dstack.probes.connection.own_cluster import connected_cluster, require_no_client
    from dstack.pytest_plugin.inspection import Inspector

    try:
        if not settings.address:
            require_no_client()
            if connected_cluster() is None:
                return
        inspection = Inspector(item, settings).inspect()
    except DstackError as error:
        item.add_report_section("call", SECTION, f"could not check for deadlocks. {error}")
        return
    settings.reported.update(key for one in inspection.stuck for key in one.members)
    if inspection.stuck:
        pytest.fail(f"The test leaves a deadlock or hang in the cluster.\n\n{inspection.report}", pytrace=False)
    if inspection.analysed.diagnosis.incomplete:
        item.add_report_section(
            "call",
            SECTION,
            "no deadlock was found, but the check is incomplete: some workers or nodes could not be read.",
        )
