"""Words for calls and for what is inferred about them."""

from __future__ import annotations

from collections.abc import Mapping

from dstack import words
from dstack.analysis.index.processes import CallRate, OwnTasks, PolledActors
from dstack.call_site import Site
from dstack.call_sites import ASYNC_LOCK, ASYNC_SEMAPHORE
from dstack.observed_calls import Inference

INFERENCES: Mapping[Inference, str] = {
    "queued future": "any thread of the executor may run the queued future",
    "with block": "it is in a with block of the lock",
    "async with block": "it is in an async with block of the lock",
    "items": "items of generators may be available already",
    "one of several": "one of several futures is enough, and which one is unknown",
}
"""The reasons for needs that are inferred."""


def polls_in_words(target: PolledActors | OwnTasks) -> str:
    """``polls Buffer.size (2.0 calls per second for 3 min)``, each method by its name; or ``polls its own tasks``."""
    if isinstance(target, OwnTasks):
        return "polls its own tasks"
    return f"polls {words.listed([f'{rate.name} ({_rate_in_words(rate)})' for rate in target.rates])}"


def _rate_in_words(rate: CallRate) -> str:
    since = f" for {words.duration(rate.for_s)}" if rate.for_s else ""
    return f"{rate.per_second:.1f} calls per second{since}"


def lock_in_words(site: Site) -> str:
    """``a semaphore`` or ``a lock``, by the site of the call that acquires it."""
    return "a semaphore" if site is ASYNC_SEMAPHORE else "a lock"


def with_statement(site: Site) -> str:
    """``a with`` or ``an async with``, the statement that acquires a lock by this call."""
    return "an async with" if site in (ASYNC_LOCK, ASYNC_SEMAPHORE) else "a with"
