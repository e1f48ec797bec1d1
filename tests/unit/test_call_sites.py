"""The table of call sites."""

from __future__ import annotations

import pytest

from dstack.call_sites import SITES, kind_of, name_of, site_of
from dstack.observed.calls import Call, ProcessObject


@pytest.mark.parametrize(
    ("site", "waker", "is_idle"),
    [
        ("threading.Event.wait", "a call of Event.set", True),
        ("queue.Queue.get", "an item in the queue", True),
        ("ray.util.queue.Queue.put", "room in the queue", True),
        ("queue.Queue.put", "room in the queue", False),
        ("threading.Lock.acquire", None, False),
        ("thread.join", None, False),
        ("selectors.select", None, True),
    ],
)
def test_a_site_says_what_ends_a_wait_and_whether_it_may_be_idle(site: str, waker: str | None, is_idle: bool) -> None:
    assert (SITES[site].ended_by, SITES[site].may_be_idle) == (waker, is_idle)


def test_sites_have_distinct_ids_and_places() -> None:
    places = [(place.file, place.function, place.at, place.having) for site in SITES.values() for place in site.places]

    assert all(site.id == key for key, site in SITES.items())
    assert len(set(places)) == len(places)


def test_sites_without_a_name_are_idle() -> None:
    assert {id for id, site in SITES.items() if not site.name} == {id for id, site in SITES.items() if site.is_idle}


def test_a_call_is_known_by_its_own_name_or_the_outer_site_or_its_kind() -> None:
    call = Call(site="ray.get", frame=0, need=ProcessObject())

    assert (kind_of(call), name_of(call)) == ("ray.get", None)
    outer = Call(site="ray.get", within="ray.util.queue.Queue.get", frame=0, need=ProcessObject())
    assert (kind_of(outer), name_of(outer)) == ("ray.get", "Queue.get of ray.util.queue")
    own = Call(site="asyncio.Queue.get", name="asyncio.Inbox.get", frame=0, need=ProcessObject())
    assert (kind_of(own), name_of(own)) == ("other", "asyncio.Inbox.get")


def test_a_site_of_another_version_of_dstack_is_named_by_its_id() -> None:
    site = site_of("zmq.recv")

    assert (site.name, site.kind, site.ended_by, site.may_be_idle) == ("zmq.recv", "other", None, True)
