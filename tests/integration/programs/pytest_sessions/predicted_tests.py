"""Tests that pass; the calls of the first one deadlock in another order."""

import time

import pytest
import ray


@ray.remote
class Shop:
    def meet(self, other):
        self.other = other

    def ping(self):
        return 1

    def work(self):
        return ray.get(self.other.ping.remote())


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture
def shops(cluster):
    a, b = Shop.remote(), Shop.remote()
    ray.get([a.meet.remote(b), b.meet.remote(a)])
    return a, b


def test_both_work(shops):
    a, b = shops
    first = a.work.remote()
    time.sleep(0.2)
    assert ray.get([first, b.work.remote()]) == [1, 1]


def test_one_after_the_other(shops):
    a, b = shops
    assert ray.get(a.work.remote()) == 1
    assert ray.get(b.work.remote()) == 1
