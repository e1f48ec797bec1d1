"""Amounts of resources in Ray's unit, and their names inside placement groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

EPSILON = 1e-4
"""Ray counts resources in units of 1/10,000."""

Amounts = Mapping[str, float]

_IN_GROUP = re.compile(r"(?P<resource>.+)_group_(?:(?P<bundle>\d+)_)?(?P<group>[0-9a-f]{36})")
_MARKER = "bundle"
"""A resource of which each bundle has 1000 and each task in it takes 0.001: it is never exhausted."""


@dataclass(frozen=True, slots=True)
class InGroup:
    """A resource of a placement group, in one of its bundles or in any."""

    resource: str
    bundle: int | None
    group: str


def in_group(name: str) -> InGroup | None:
    """Parse a name such as ``CPU_group_0_ID`` or ``CPU_group_ID``; None for a resource outside of placement groups.

    A request for a certain bundle names both, a request for any bundle only the second. The node counts both as used in
    each case. Seen on Ray 2.46 and 2.60.
    """
    match = _IN_GROUP.fullmatch(name) if "_group_" in name else None
    if match is None:
        return None
    return InGroup(match["resource"], int(match["bundle"]) if match["bundle"] else None, match["group"])


def is_implied(name: str, names: Iterable[str]) -> bool:
    """Whether one of the names is the same resource of a certain bundle."""
    place = in_group(name)
    if place is None or place.bundle is not None:
        return False
    others = map(in_group, names)
    return any(o and o.bundle is not None and (o.resource, o.group) == (place.resource, place.group) for o in others)


def is_cpu(name: str) -> bool:
    """Whether it is CPU, perhaps of a placement group."""
    place = in_group(name)
    return (place.resource if place else name) == "CPU"


def wanted(amounts: Amounts) -> dict[str, float]:
    """The positive amounts, sorted by name."""
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > EPSILON}


def fits(amounts: Amounts, total: Amounts) -> bool:
    """Whether the total contains all of these amounts."""
    return all(total.get(name, 0.0) >= amount - EPSILON for name, amount in amounts.items())


def summed(several: Iterable[Amounts]) -> dict[str, float]:
    """The sum of several amounts."""
    total: dict[str, float] = {}
    for amounts in several:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def plain(amounts: Amounts) -> dict[str, float]:
    """The amounts by the names that users know, without bundles."""
    named: dict[str, float] = {}
    for name, amount in amounts.items():
        place = in_group(name)
        if place is None:
            named[name] = amount
        elif place.resource != _MARKER:
            named.setdefault(place.resource, amount)
    return named


def bundle_of(amounts: Amounts) -> int | None:
    """The bundle that a request names, if any."""
    places = map(in_group, amounts)
    return next((place.bundle for place in places if place and place.bundle is not None), None)
