"""Tests that pass; the calls of the last one deadlock in another order."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray


class Shop:
    def meet(self, other: Any) -> None:
        self.other = other

    def ping(self) -> int:
        return 1

    def work(self) -> int:
        return ray.get(self.other.ping.remote())


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture
def shops(cluster: None) -> tuple[Any, Any]:
    actor_class: Any = ray.remote(Shop)
    one, two = actor_class.remote(), actor_class.remote()
    ray.get([one.meet.remote(two), two.meet.remote(one)])
    return one, two


def test_one_after_the_other(shops: tuple[Any, Any]) -> None:
    one, two = shops
    assert ray.get(one.work.remote()) == 1
    assert ray.get(two.work.remote()) == 1


def test_both_work(shops: tuple[Any, Any]) -> None:
    one, two = shops
    first = one.work.remote()
    time.sleep(0.2)
    assert ray.get([first, two.work.remote()]) == [1, 1]
    ray.shutdown()  # as some tests do
