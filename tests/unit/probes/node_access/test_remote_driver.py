"""What dstack's driver sends to the probes on other nodes."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest

from dstack.probes.node_access import remote_driver
from dstack.probes.node_access.remote_driver import Probes


@pytest.mark.parametrize(
    ("needed_for", "sent"), [(platform.machine(), ["py-spy"]), ("another machine", []), ("", []), (None, [])]
)
def test_a_pyspy_goes_only_to_a_node_that_needs_one_for_the_same_machine(
    monkeypatch: pytest.MonkeyPatch, needed_for: object, sent: list[str]
) -> None:
    received: list[str] = []
    monkeypatch.setattr(remote_driver, "pickle_by_value", lambda: None)
    monkeypatch.setattr(Probes, "_pyspy_binary", lambda _: "py-spy")
    probes = Probes()
    probes.actors["node"] = SimpleNamespace(equip=SimpleNamespace(remote=received.append))

    probes.equip("node", needed_for)

    assert received == sent
