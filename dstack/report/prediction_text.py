"""What could deadlock, as text and as JSON (schema ``dstack.predict/1``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta
from rich.console import Console

from dstack.files.document_file import to_json
from dstack.model.prediction import Blocked, CapacityNeed, Hold, Overtaking, PossibleDeadlock, Prediction
from dstack.model.snapshot import Snapshot
from dstack.report.check_schema import Json
from dstack.report.rich_text import Row, SafeText, location, plain_text, print_rows
from dstack.words import SHOWN, capitalised, duration, listed, plural, shortly, word

INDENT = " " * 3
WIDTH = 100
CLOSE_S = 0.05
NOTHING = "No other order of these calls was found that deadlocks."


def print_prediction(prediction: Prediction, console: Console) -> None:
    """Prints each possible deadlock with its calls, how it comes about and a fix; then what that rests on."""
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    for number, possible in enumerate(prediction.possible):
        if number:
            console.print()
        print_rows(console, possible_rows(possible))
    if not prediction.possible:
        print_rows(console, [Row("", "", SafeText(NOTHING, "bold"))])
    if prediction.needs:
        console.print()
        print_rows(console, (row for need in prediction.needs for row in need_rows(need)))
    console.print()
    print_rows(console, foot_rows(prediction))


def possible_rows(possible: PossibleDeadlock) -> Iterator[Row]:
    """One possible deadlock."""
    yield Row("POSSIBLE DEADLOCK  ", " " * 19, SafeText(f"{headline(possible)}", "bold"))
    numbers = _numbers(possible)
    for at, member in enumerate(possible.members):
        if not member.is_queued:
            yield from _member_rows(possible, at, numbers)
    yield Row("How: ", " " * 5, SafeText(how(possible)))
    yield Row("Fix: ", " " * 5, SafeText(fix(possible)))


def headline(possible: PossibleDeadlock) -> str:
    """``Left.ask and Right.ask wait for each other for ever if they run at the same time``."""
    waiting = _waiting(possible)
    names = [one.name for one in waiting]
    if len(waiting) == 1:
        return f"{names[0]} waits for ever {_if_one(possible)}"
    who = f"{len(names)} calls of {names[0]}" if len(set(names)) == 1 else shortly(list(dict.fromkeys(names)))
    return f"{who} wait for each other for ever if they run at the same time"


def _if_one(possible: PossibleDeadlock) -> str:
    queued = [one for one in possible.members if one.is_queued]
    return f"for {queued[0].name}" if queued else "for its lock"


def _waiting(possible: PossibleDeadlock) -> Sequence[Blocked]:
    return [one for one in possible.members if not one.is_queued]


def _numbers(possible: PossibleDeadlock) -> dict[int, int]:
    """The number of each call that waits, by its place among the members."""
    places = [at for at, one in enumerate(possible.members) if not one.is_queued]
    return {at: number for number, at in enumerate(places, 1)}


def _member_rows(possible: PossibleDeadlock, at: int, numbers: dict[int, int]) -> Iterator[Row]:
    member = possible.members[at]
    lead = f"{INDENT}{numbers[at]}  "
    title = SafeText(member.name, "bold").append(f" of {member.actor}" if member.actor else "")
    if member.file:
        title.append(f"  {location(member.file, member.line)}", "cyan")
    if member.source:
        title.append(f"  {member.source}")
    yield Row(lead, " " * len(lead), title)
    yield Row(" " * len(lead), " " * len(lead), SafeText(_does(possible, at, numbers)))


def _does(possible: PossibleDeadlock, at: int, numbers: dict[int, int]) -> str:
    """``keeps the only slot of Shop while it waits for Shop.ping, which is queued behind 2``."""
    member = possible.members[at]
    waits = f"waits for {member.awaits}" if member.awaits else "waits"
    beside = [*possible.members[at + 1 : at + 2], *(possible.members[index] for index in member.held_up_by)]
    queued = next((one for one in beside if one.is_queued and one.name == member.awaits), None)
    if queued is not None:
        behind = [str(numbers[index]) for index in queued.held_up_by]
        waits += f", which is queued behind {listed(behind)}" if behind else ", which cannot begin"
    elif holders := [str(numbers[index]) for index in member.held_up_by if index in numbers]:
        waits += f", which {listed(holders)} {word(len(holders), 'holds', 'hold')}"
    holds = list(map(hold_in_words, member.holds))
    return f"keeps {listed(holds)} while it {waits}" if holds else waits


def hold_in_words(hold: Hold) -> str:
    """``the only slot of its actor``."""
    where = f"group {hold.name} of its actor" if hold.name else "its actor"
    if hold.kind == "only slot":
        return f"the only slot of {where}"
    if hold.kind == "slot":
        return f"one of {hold.amount:g} slots of {where}"
    if hold.kind == "event loop":
        return f"the event loop of {where}"
    if hold.kind == "lock" and hold.amount > 1:
        return f"one of {hold.amount:g} permits of {hold.name}"
    return f"the lock {hold.name}" if hold.kind == "lock" else f"{hold.amount:g} {hold.name}"


def how(possible: PossibleDeadlock) -> str:
    """The change of order that it takes, and how far the run was from it."""
    numbers = _numbers(possible)
    changes = [_change(possible, one, numbers) for one in possible.changes]
    text = f"{capitalised(listed(changes))}." if changes else "The calls overlap, each at its wait."
    gap = possible.gap_s
    if gap is None:
        return text
    if gap <= 0:
        return f"{text} In this run they overlapped, and were lucky."
    before = f"{duration(gap)} before" if gap >= CLOSE_S else "right before"
    return f"{text} In this run one had ended {before} another began."


def _change(possible: PossibleDeadlock, one: Overtaking, numbers: dict[int, int]) -> str:
    first, second = numbers.get(one.first), possible.members[one.second]
    waiters = [numbers[at] for at, member in enumerate(possible.members) if at in numbers and at + 1 == one.second]
    for_whom = f", for which {waiters[0]} waits" if waiters and waiters[0] != first else ""
    return f"{first} begins before {second.name}{for_whom}"


def fix(possible: PossibleDeadlock) -> str:
    """Changes of the program that exclude it."""
    queued = list(dict.fromkeys(one.name for one in possible.members if one.is_queued))
    kinds = {hold.kind for one in possible.members for hold in one.holds}
    waiting = list(dict.fromkeys(one.name for one in _waiting(possible)))
    blocking = list(dict.fromkeys(one.name for one in possible.members if one.blocks_loop))
    if blocking and "event loop" in kinds:
        return f"Await the ObjectRef instead of ray.get in {listed(blocking)}, which blocks its event loop."
    locks = {hold.name for one in possible.members for hold in one.holds if hold.kind == "lock"}
    if kinds == {"lock"} and locks.issuperset(one.awaits for one in possible.members):
        return f"Take the locks in the same order in {listed(waiting)}."
    if "resource" in kinds:
        names = sorted({hold.name for one in possible.members for hold in one.holds if hold.kind == "resource"})
        return (
            f"Do not hold {listed(names)} in {listed(waiting)} while waiting for {listed(queued, ' or ')}, which needs "
            "it too: start that first, or return its ObjectRef instead of getting it."
        )
    if "lock" in kinds:
        holders = list(dict.fromkeys(one.name for one in possible.members if one.holds))
        awaited = list(dict.fromkeys(one.awaits for one in possible.members if one.awaits and one.awaits not in locks))
        what = listed(awaited, " or ") or "anything else"
        return f"Release the lock in {listed(holders)} before it waits for {what}."
    return (
        f"Raise max_concurrency of the {word(len(queued), 'actor', 'actors')} of {listed(queued)}; or give "
        f"{listed(queued, ' or ')} a concurrency group of its own; or return the ObjectRef instead of waiting in "
        f"{listed(waiting)}."
    )


def need_rows(need: CapacityNeed) -> Iterator[Row]:
    """What a kind of call needs of a resource, and where it would hang."""
    lead = "Needs: "
    if not need.awaits:
        text = (
            f"{need.minimum:g} {need.resource} for the actors that lived at once, {need.name}, and kept it so long "
            f"(this cluster has {need.present:g}). With less the last of them are never created."
        )
        yield Row(lead, " " * len(lead), SafeText(text))
        return
    where = f" ({location(need.file, need.line)})" if need.file else ""
    yield Row(
        lead,
        " " * len(lead),
        SafeText(
            f"{need.minimum:g} {need.resource} for {need.at_once} calls of {need.name} at once: each keeps "
            f"{need.held:g} while it waits for {need.awaits}{where}, which needs {need.needed:g}. With less it hangs; "
            f"with the {need.present:g} of this cluster if {need.hangs_at:,} run at once."
        ),
    )


def foot_rows(prediction: Prediction) -> Iterator[Row]:
    """What was examined, and what is missing."""
    examined = f"{plural(prediction.calls, 'call')} of this run, {plural(prediction.waits, 'certain wait')}"
    yield Row("Examined: ", " " * 10, SafeText(examined, "dim"))
    missing = list(prediction.limits)
    if names := prediction.without_source:
        missing.append(f"The source of {shortly(names)} was not read: waits there are known only from samples.")
    for text in missing[:SHOWN]:
        yield Row("Not examined: ", " " * 14, SafeText(text, "yellow"))


def possible_text(possible: PossibleDeadlock) -> str:
    """One possible deadlock as plain text, without colours."""
    return plain_text(lambda console: print_rows(console, possible_rows(possible)), WIDTH)


class PredictionDocument(TypedDict):
    """What ``dstack predict --json`` prints."""

    schema: Literal["dstack.predict/1"]
    address: str
    ray_version: str
    taken_at: Annotated[float, Meta(description="Unix time")]
    prediction: Prediction


def prediction_schema() -> Json:
    """The JSON Schema of ``dstack.predict/1``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(PredictionDocument)}


def prediction_json(snapshot: Snapshot, prediction: Prediction) -> bytes:
    """The prediction as JSON, indented, with a newline at its end."""
    document: PredictionDocument = {
        "schema": "dstack.predict/1",
        "address": snapshot.address,
        "ray_version": snapshot.ray_version,
        "taken_at": snapshot.taken_at,
        "prediction": prediction,
    }
    return msgspec.json.format(to_json(document), indent=2) + b"\n"
