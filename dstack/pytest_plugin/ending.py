"""What is still stuck in the cluster when a test has ended fails it, once."""

from __future__ import annotations

import sys

import pytest

from dstack.errors import DstackError
from dstack.pytest_plugin.settings import Settings
from dstack.vertex_keys import Key


def fail_if_stuck(item: pytest.Item, settings: Settings, told: set[Key]) -> None:
    """Looks after a test that has passed, if it is connected to a cluster or one is named.

    What an earlier test has failed for is in ``told``, and fails no other.
    """
    __tracebackhide__ = True
    if "ray._private.worker" not in sys.modules and not settings.address:
        return
    from dstack.probes.connection.own_cluster import connected_cluster, require_no_client
    from dstack.pytest_plugin.look import Look

    try:
        if not settings.address:
            require_no_client()
            if connected_cluster() is None:
                return
        seen = Look(item, settings, told).take()
    except DstackError as error:
        item.add_report_section("call", "dstack", f"could not check for deadlocks. {error}")
        return
    told.update(key for one in seen.stuck for key in one.members)
    if seen.stuck:
        pytest.fail(f"The test leaves a deadlock or hang in the cluster.\n\n{seen.report}", pytrace=False)
    if seen.diagnosis.incomplete:
        item.add_report_section(
            "call",
            "dstack",
            "no deadlock was found, but the check is incomplete: some workers or nodes could not be read.",
        )
