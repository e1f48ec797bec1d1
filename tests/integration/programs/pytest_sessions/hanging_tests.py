"""Tests that hang, each in a different way, and tests that do not."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
import ray

import dstack as package

pytestmark = pytest.mark.dstack(timeout=2)


@ray.remote(num_cpus=0)
class Clerk:
    def ready(self) -> None:
        pass

    def asks_itself(self) -> Any:
        me = ray.get_runtime_context().current_actor
        return ray.get(me.ready.remote())


@ray.remote(num_cpus=0)
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


clerks: list[Any] = []
hung: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    clerks.extend(cast(Any, Clerk).remote() for _ in range(5))
    ray.get([clerk.ready.remote() for clerk in clerks])
    yield
    ray.shutdown()


def deadlock() -> Any:
    hung.append(clerks.pop())  # without a handle it would end
    return hung[-1].asks_itself.remote()


@pytest.mark.dstack(timeout=60)
def test_slow() -> None:
    assert ray.get(nap.remote(3)) == 3


def test_body() -> None:
    try:
        ray.get(deadlock())
    finally:
        time.sleep(0.5)  # cleaning up


@pytest.fixture
def hanging_setup() -> None:
    ray.get(deadlock())


def test_setup(hanging_setup: None) -> None:
    pass


@pytest.fixture
def hanging_teardown() -> Iterator[None]:
    yield
    ray.get(deadlock())


def test_teardown(hanging_teardown: None) -> None:
    pass


@pytest.mark.asyncio
async def test_await() -> None:
    await deadlock()


@pytest.mark.asyncio
async def test_await_unset_event() -> None:
    await asyncio.Event().wait()


@pytest.mark.dstack(timeout=0)
def test_asserts(dstack: Any) -> None:
    assert dstack.assert_no_deadlock()
    assert dstack.check().verdict == "idle"
    deadlock()
    while dstack.check().verdict != "deadlock":
        pass  # the call has not begun
    with pytest.raises(package.DeadlockFound, match=r"Clerk\.asks_itself"):
        dstack.assert_no_deadlock()


@pytest.mark.dstack(timeout=60)
@pytest.mark.timeout(1)
def test_other_timeout() -> None:
    time.sleep(60)


def test_quick() -> None:
    assert ray.get(nap.remote(0)) == 0
