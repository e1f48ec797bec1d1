"""Tests of a Ray application that may hang, for pytest with the plugin of dstack. Copy what you need.

    pytest --dstack-timeout=60 --dstack-check=end --dstack-dir=hangs test_deadlock.py

The first test passes. The second hangs, and fails after 5 seconds with a report. The third passes, but leaves two calls
that wait for each other for ever, so ``--dstack-check=end`` fails it. The fourth asserts that there is no deadlock.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import ray


@ray.remote(num_cpus=0)
class Account:
    """Runs one call at a time; a transfer there and back asks the very account that waits for it."""

    def open(self, other: Any) -> None:
        self.other = other

    def transfer(self, amount: int, *, back: bool) -> int:
        if back:
            ray.get(self.other.transfer.remote(amount, back=False))
        return ray.get(self.other.receive.remote(amount))

    def receive(self, amount: int) -> int:
        return amount


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def account() -> Any:
    """One of two accounts that know each other."""
    account_class: Any = Account
    one, other = account_class.remote(), account_class.remote()
    ray.get([one.open.remote(other), other.open.remote(one)])
    return one


def test_a_transfer_arrives(account: Any) -> None:
    assert ray.get(account.transfer.remote(5, back=False)) == 5


@pytest.mark.dstack(timeout=5)
def test_a_transfer_back_hangs(account: Any) -> None:
    assert ray.get(account.transfer.remote(5, back=True)) == 5


def test_a_transfer_without_a_waiter(account: Any) -> None:
    account.transfer.remote(5, back=True)


def test_a_transfer_is_watched(account: Any, dstack: Any) -> None:
    with dstack.assert_no_deadlock(within=30):  # fails as soon as a deadlock is confirmed
        ray.get(account.transfer.remote(5, back=True))
