"""Recognises call sites in stacks.

A thread waits if its innermost frame is at a ``leaf`` place of a site, and the kernel shows it blocked. Outward from
there, each frame at a ``caller`` place gives the wait a better name, up to the first frame of the user's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dstack.call_sites import SITES
from dstack.libraries.torch.sites import OPERATOR
from dstack.observed.call_site import At, Place, Site
from dstack.probes.node.threads import Frame, is_in

Table = dict[str, list[tuple[Place, Site]]]


def _by_function(fits: Callable[[Place], bool]) -> Table:
    """Places by function, the most specific file first: ``/ray/util/queue.py`` before ``/queue.py``."""
    places = [(place, site) for site in SITES.values() for place in site.places if fits(place)]
    table: Table = {}
    for place, site in sorted(places, key=lambda pair: -len(pair[0].file)):
        table.setdefault(place.function, []).append((place, site))
    return table


def _at(*where: At) -> Table:
    return _by_function(lambda place: place.at in where and place.every_s is None)


IN_LEAF, IN_CALLERS = _at("leaf", "leaf or caller"), _at("channel", "caller", "leaf or caller")
IN_CHANNEL, IN_COROUTINE = _at("channel"), _at("coroutine")
"""The tables for :func:`site_in`, by the place of a frame in its stack."""
_POLLS = _by_function(lambda place: place.every_s is not None)


def site_in(frame: Frame, table: Table) -> Site | None:
    """The site of a table that this frame is in."""
    position = frame.position
    for place, site in table.get(position.function, ()):
        if position.file.endswith(place.file) and (place.having is None or frame.has(place.having)):
            return site
    return None


def site_of_leaf(frames: Sequence[Frame]) -> Site | None:
    """The site of the innermost frame, or of its caller if the frame is an operator of torch."""
    site = site_in(frames[0], IN_LEAF)
    if site is None and len(frames) > 1 and is_in(frames[0], *OPERATOR):
        return site_in(frames[1], IN_LEAF)
    return site


def poll_of(leaf: Frame) -> tuple[Site, float] | None:
    """The site at which a thread that sleeps in this frame polls, with the seconds of each sleep; None for others."""
    position = leaf.position
    for place, site in _POLLS.get(position.function, ()):
        if position.file.endswith(place.file) and place.every_s is not None:
            return site, place.every_s
    return None


def sites_outward(frames: Sequence[Frame], is_user: Callable[[Frame], bool]) -> Iterator[tuple[int, Site]]:
    """Frames that name a wait, with their index from the leaf, up to the user's own code."""
    for index, frame in enumerate(frames):
        if is_user(frame):
            return
        site = site_in(frame, IN_CALLERS if index else IN_LEAF)
        if site:
            yield index, site
