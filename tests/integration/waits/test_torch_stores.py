"""Waits for stores of torch.distributed are read: keys, addresses, and whether anything listens there."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dstack.observed.calls import Call, KernelObjects, StoreUse
from tests.integration.waits.test_torch_groups import START_S, free_port
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import sample, target

pytestmark = pytest.mark.libraries

PROGRAM = PROGRAMS / "processes/torch_stores.py"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[dict[str, Call]]:
    """The calls by the name of their thread, once all of them wait for a store."""
    log = tmp_path_factory.mktemp("stores") / "log"
    with running([sys.executable, str(PROGRAM), str(port)], {}, log) as child:
        child.wait_for_line("ready", deadline_s=START_S)

        def settled() -> dict[str, Call] | None:
            found = stores_of(child)
            return found if len(found) == 5 and found["of_prefix"].timeout_s else None

        yield wait_until(settled, deadline_s=START_S, what=lambda: f"five waits for stores, not {stores_of(child)}")


def stores_of(child: Child) -> dict[str, Call]:
    threads = sample(target(child.pid))["processes"]["w"]["threads"]
    return {one["name"]: one["call"] for one in threads if use_in(one["call"])}


def use_in(call: Call | None) -> StoreUse | None:
    return call.need.store if call and isinstance(call.need, KernelObjects) else None


def test_the_keys_and_the_address_are_those_of_the_program(calls: dict[str, Call], port: int) -> None:
    uses = {name: use_in(calls[name]) for name in ("wait", "get", "of_prefix")}

    assert uses == {
        "wait": StoreUse(address=f"127.0.0.1:{port}", keys=("ready", "loaded")),
        "get": StoreUse(address=f"127.0.0.1:{port}", keys=("version",)),
        "of_prefix": StoreUse(address=f"127.0.0.1:{port}", keys=("step",)),
    }


def test_only_a_short_timeout_counts(calls: dict[str, Call]) -> None:
    assert calls["wait"].timeout_s is None
    assert calls["of_prefix"].timeout_s == 30


def test_a_client_without_a_server_and_a_server_without_clients(calls: dict[str, Call], port: int) -> None:
    connect, serve = calls["connect"], calls["serve"]

    assert use_in(connect) == StoreUse(address=f"127.0.0.1:{port + 1}", size=3)
    assert use_in(serve) == StoreUse(address=f"127.0.0.1:{port + 2}", is_server=True, size=3, clients=1)
    assert isinstance(connect.need, KernelObjects)
    assert [end.state for end in connect.need.ends] == ["refused"]
