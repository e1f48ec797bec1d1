"""What makes a run differ from a plain one, as a value that repeats it; how settings are chosen and made smaller.

A delay with two bounds is drawn at random by Ray, without a seed: then the same setting gives other orders. An exact
delay does not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from dstack.errors import UsageError
from dstack.probes.connection.cluster_variables import DELAYED_METHODS, DELAYS, RESOURCES
from dstack.words import listed

SHORTEST_MS, LONGEST_MS = 30, 1000
PLAIN = "plain"
_DELAY = re.compile(r"(\d+)(?:-(\d+))?ms")
_FORM = "A setting is a list such as: PushTask=0-60ms CPU=3 PYTHONHASHSEED=7 stop=200ms#7 kill=1#7"


@dataclass(frozen=True)
class Delay:
    """A method of :data:`DELAYED_METHODS`, or a name of Ray's own, handled so many milliseconds late."""

    method: str
    least_ms: int
    most_ms: int

    def __str__(self) -> str:
        span = f"{self.most_ms}" if self.least_ms == self.most_ms else f"{self.least_ms}-{self.most_ms}"
        return f"{self.method}={span}ms"


@dataclass(frozen=True)
class Amount:
    """A resource of each node that the program starts, and its changed amount."""

    resource: str
    amount: int

    def __str__(self) -> str:
        return f"{self.resource}={self.amount}"


@dataclass(frozen=True)
class HashSeed:
    """Python's seed for the hashes of strings, which decides the order of sets."""

    seed: int

    def __str__(self) -> str:
        return f"PYTHONHASHSEED={self.seed}"


@dataclass(frozen=True)
class Stops:
    """Workers that stand still now and then, for at most so long each time."""

    most_ms: int
    seed: int

    def __str__(self) -> str:
        return f"stop={self.most_ms}ms#{self.seed}"


@dataclass(frozen=True)
class Kills:
    """How many workers are killed while they run something."""

    count: int
    seed: int

    def __str__(self) -> str:
        return f"kill={self.count}#{self.seed}"


Part = Delay | Amount | HashSeed | Stops | Kills


@dataclass(frozen=True)
class Setting:
    """The changes of one run; without any, the run is a plain one. ``str()`` of it is what :meth:`parsed` reads."""

    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.parts)) or PLAIN

    @classmethod
    def parsed(cls, text: str) -> Setting:
        """The setting of a line. Raises :class:`dstack.UsageError` if it has another form."""
        return cls(tuple(map(_part, text.split()))) if text.strip() not in ("", PLAIN) else cls()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a run differs."""
        delays = [one for one in self.parts if isinstance(one, Delay)]
        amounts = {one.resource: one.amount for one in self.parts if isinstance(one, Amount)}
        rows = [
            f"{name}={one.least_ms * 1000}:{one.most_ms * 1000}"
            for one in delays
            for name in (DELAYED_METHODS[one.method].names if one.method in DELAYED_METHODS else (one.method,))
        ]
        found = {DELAYS: ",".join(rows)} if rows else {}
        found |= {RESOURCES: json.dumps(amounts)} if amounts else {}
        seeds = [str(one.seed) for one in self.parts if isinstance(one, HashSeed)]
        return found | ({"PYTHONHASHSEED": seeds[-1]} if seeds else {})

    @property
    def longest_delay_s(self) -> float:
        """How long a call may be on its way because of this setting."""
        return max((one.most_ms / 1000 for one in self.parts if isinstance(one, Delay | Stops)), default=0.0)

    def without(self, part: Part) -> Setting:
        """The setting with one part less."""
        return Setting(tuple(one for one in self.parts if one != part))

    def halved(self, delay: Delay) -> Setting:
        """The setting with a delay, or its range, half as long."""
        half = replace(delay, least_ms=delay.least_ms // 2, most_ms=delay.most_ms // 2)
        return Setting(tuple(half if one == delay else one for one in self.parts))

    def in_words(self) -> str:
        """The changes as a clause: ``with calls delayed by 0-60 ms (PushTask) and CPU set to 3``."""
        return f"with {listed([_words(part) for part in self.parts])}" if self.parts else "without any change"


def _part(text: str) -> Part:
    name, _, value = text.partition("=")
    value, _, seed = value.partition("#")
    if name == "kill" and value.isdigit() and seed.isdigit():
        return Kills(int(value), int(seed))
    if name == "PYTHONHASHSEED" and value.isdigit():
        return HashSeed(int(value))
    if span := _DELAY.fullmatch(value):
        least, most = int(span[1]), int(span[2] or span[1])
        if name == "stop" and seed.isdigit():
            return Stops(most, int(seed))
        if least <= most and not seed and name:
            return Delay(name, least, most)
    if name and name not in (*DELAYED_METHODS, "stop", "kill") and value.isdigit() and not seed:
        return Amount(name, int(value))
    raise UsageError(f"{text} is not a part of a setting.", _FORM)


def _words(part: Part) -> str:
    match part:
        case Delay(method, least, most):
            span = f"{most}" if least == most else f"{least}-{most}"
            if method in DELAYED_METHODS:
                return f"{DELAYED_METHODS[method].late} delayed by {span} ms ({method})"
            return f"{method} delayed by {span} ms"
        case Amount(resource, amount):
            return f"{resource} set to {amount}"
        case HashSeed(seed):
            return f"PYTHONHASHSEED {seed}"
        case Stops(most, _):
            return f"workers stopped for up to {most} ms"
        case Kills(count, _):
            return f"{count} killed worker{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Hint:
    """Where a hang is likely: calls that need another order, by a gap in seconds, or an amount that is too small."""

    kind: Literal["order", "capacity"]
    gap_s: float = 0.0
    resource: str = ""
    amount: int = 0


def settings(
    seed: int,
    run: int,
    hints: Sequence[Hint] = (),
    capacity: Mapping[str, float] | None = None,
    *,
    may_kill: bool = False,
) -> Setting:
    """The setting of one run of a search: the first, 0, is plain, the next ones follow the hints, the others vary.

    ``capacity`` has the resources of the plain run's cluster, of which others get other amounts.
    """
    if run == 0:
        return Setting()
    if run <= len(hinted := list(hinted_settings(hints))):
        return hinted[run - 1]
    random = Random(f"{seed}/{run}")
    known = {name: int(amount) for name, amount in (capacity or {"CPU": 2}).items() if amount >= 1}
    number = run - len(hinted) - 1
    parts = [*(_calls, _fewer, _several, _slow_workers)[number % 4](random, known)]
    if may_kill and number % 4 == 3:
        parts.append(Kills(random.randint(1, 2), random.randrange(1000)))
    return Setting(tuple(parts))


def hinted_settings(hints: Sequence[Hint]) -> Iterator[Setting]:
    """The settings that hints lead to: calls late by twice the gap, exactly and at random, or the amount."""
    for hint in hints:
        if hint.kind == "capacity":
            yield Setting((Amount(hint.resource, hint.amount),))
        else:
            delay_ms = max(SHORTEST_MS, math.ceil(hint.gap_s * 2000))
            yield Setting((Delay("PushTask", delay_ms, delay_ms),))
            yield Setting((Delay("PushTask", 0, delay_ms),))


def _length_ms(random: Random, shortest: int = SHORTEST_MS) -> int:
    """A length on a logarithmic scale, in tens."""
    return max(shortest, round(math.exp(random.uniform(math.log(shortest), math.log(LONGEST_MS))) / 10) * 10)


def _calls(random: Random, _: Mapping[str, int]) -> Iterator[Part]:
    """Every call takes as long as the pauses between calls."""
    length = _length_ms(random, 100)
    yield Delay("PushTask", length, length)
    if random.random() < 0.5:
        length = _length_ms(random, 100)
        yield Delay(random.choice(("TaskReply", "RequestWorkerLease", "GetObjectStatus")), length, length)


def _fewer(random: Random, known: Mapping[str, int]) -> Iterator[Part]:
    """Another amount of one resource: few, half, odd, one less or one more."""
    candidates = {
        Amount(name, amount)
        for name, total in known.items()
        for amount in (1, 2, 3, total // 2, total - 1, total + 1)
        if 1 <= amount != total
    }
    fewer = sorted((one for one in candidates if one.amount < known[one.resource]), key=str)
    more = sorted(candidates.difference(fewer), key=str)
    yield random.choice(fewer if fewer and (random.random() < 0.75 or not more) else more)


def _several(random: Random, known: Mapping[str, int]) -> Iterator[Part]:
    """Several methods at random, so that calls overtake each other."""
    methods = random.sample(sorted(DELAYED_METHODS), random.randint(2, 4))
    yield from (Delay(method, 0, _length_ms(random)) for method in sorted({"PushTask", *methods}))
    if random.random() < 0.3:
        yield from _fewer(random, known)


def _slow_workers(random: Random, known: Mapping[str, int]) -> Iterator[Part]:
    """Workers that stop, another order of sets, and often delays."""
    yield HashSeed(random.randrange(1, 1000))
    yield Stops(_length_ms(random, 100), random.randrange(1000))
    if random.random() < 0.5:
        yield Delay("PushTask", 0, _length_ms(random))
    if random.random() < 0.3:
        yield from _fewer(random, known)


def smaller(setting: Setting) -> Iterator[Setting]:
    """What may suffice instead, the smallest first: each part alone, then all but one part."""
    if len(setting.parts) > 1:
        yield from (Setting((part,)) for part in setting.parts)
    if len(setting.parts) > 2:
        yield from map(setting.without, setting.parts)


def weaker(setting: Setting) -> Iterator[Setting]:
    """The setting with one delay half as long."""
    delays = (one for one in setting.parts if isinstance(one, Delay) and one.most_ms > SHORTEST_MS)
    yield from map(setting.halved, delays)
