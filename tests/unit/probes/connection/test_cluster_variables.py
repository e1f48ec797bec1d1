"""The names of Ray's private API by which a run is disturbed are in the Ray that is installed."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import ray
from ray._private import ray_constants

from dstack.probes.connection.cluster_variables import DELAYED_METHODS, DELAYS, REPORT_INTERVAL_MS, RESOURCES

FOLDER = Path(ray.__file__).parent
BINARIES = ("_raylet.so", "core/src/ray/raylet/raylet", "core/src/ray/gcs/gcs_server")


@pytest.fixture(scope="module")
def binaries() -> Iterator[list[mmap.mmap]]:
    with ExitStack() as stack:
        files = [stack.enter_context((FOLDER / name).open("rb")) for name in BINARIES]
        yield [stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) for file in files]


def has(binaries: list[mmap.mmap], name: str) -> bool:
    return any(one.find(name.encode()) >= 0 for one in binaries)


@pytest.mark.parametrize("method", DELAYED_METHODS)
def test_a_method_that_is_delayed_has_a_name_in_rays_event_loops(method: str, binaries: list[mmap.mmap]) -> None:
    assert any(has(binaries, name) for name in DELAYED_METHODS[method].names)


@pytest.mark.parametrize("variable", [DELAYS, REPORT_INTERVAL_MS])
def test_a_variable_of_rays_configuration_is_known(variable: str, binaries: list[mmap.mmap]) -> None:
    assert has(binaries, variable.removeprefix("RAY_"))


def test_the_variable_of_resources_is_rays() -> None:
    assert ray_constants.RESOURCES_ENVIRONMENT_VARIABLE == RESOURCES


def test_an_unknown_name_is_not_found(binaries: list[mmap.mmap]) -> None:
    assert not has(binaries, "CoreWorkerService.grpc_server.PushNoTask")
