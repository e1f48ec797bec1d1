"""The words about processes that meet to make a process group: who has come, what is missing, what keeps them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dstack import words
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.group_ranks import CollectiveCall
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.graph.group_members import FORMING
from dstack.analysis.graph.meetings import Arrival, arrivals, is_meeting, sizes_at, taken_twice
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.ends import ends_in_words
from dstack.model.diagnosis import Vertex
from dstack.observed.calls import GroupCall, StoreUse
from dstack.words import grouped

SAME_ADDRESS = (
    "Give all ranks the same address and port (MASTER_ADDR and MASTER_PORT, or init_method): those at which rank 0 "
    "listens, on its own node."
)
SAME_SIZE = "Give all ranks the same world size (WORLD_SIZE, or world_size): the number of processes that take part."
LISTEN, CONNECT = ("listens at", "listen at"), ("connects to", "connect to")
OWN_RANKS = "Give each process a rank of its own (RANK, or rank), from 0 to {}."


def apart(facts: FindingFacts) -> tuple[str, str | None] | None:
    """What keeps processes apart, and the fix: different addresses or sizes, a rank that several have, no server."""
    first = next((one.call for one in facts.ranks.calls if is_meeting(one.call)), None)
    if first is None:
        return None
    index = facts.reduced.index
    all_arrived = [one for one in arrivals(index) if one.job_id in facts.draft.jobs]
    arrived = [one for one in all_arrived if one.call.group.library == first.group.library]
    sizes = sizes_at(index, first.group.address, arrived)
    if len(sizes) > 1:
        return f"and their world sizes differ: {_sizes_in_words(sizes)}", SAME_SIZE
    alike = [one for one in arrived if one.size == len(first.group.ranks)]
    if _have_several_addresses(alike):
        return f"and the ranks do not agree on the address where they meet: {_addresses_in_words(alike)}", SAME_ADDRESS
    if twice := taken_twice(one for one in alike if one.address == first.group.address):
        return _taken_in_words(facts, twice, alike), OWN_RANKS.format(len(first.group.ranks) - 1)
    return (f"and nothing listens at {first.group.address}", None) if first.is_refused else None


def headline(facts: FindingFacts) -> str | None:
    """``ranks 0-2 are in init_process_group of group default_pg, and their world sizes differ: ...``."""
    if (found := apart(facts)) is None or found[1] is None:
        return None
    made = [one for one in facts.ranks.calls if is_meeting(one.call)]
    inside = {rank for one in made for rank in one.ranks}
    are, group = words.word(len(inside), "is", "are"), names.process_group(made[0].call.group)
    return f"{names.ranks(inside)} {are} in {made[0].operation} of {group}, {found[0]}"


def _sizes_in_words(sizes: dict[int, set[int]]) -> str:
    """``4 for ranks 0-1, 3 and 8 for rank 2``."""
    return words.listed([f"{size} for {names.ranks(sizes[size])}" for size in sorted(sizes)])


def _have_several_addresses(arrived: Sequence[Arrival]) -> bool:
    """Whether they have come to several addresses, no rank to two of them."""
    addresses, ranks = {one.address for one in arrived}, {one.rank for one in arrived}
    return len(addresses) > 1 and len(ranks) == len(arrived)


def _addresses_in_words(arrived: Iterable[Arrival]) -> str:
    """``rank 0 listens at 10.0.0.3:29574; ranks 1-2 connect to 127.0.0.1:29575, where nothing listens``."""
    groups = grouped(((one.listens, f"{one.address}{_listener(one.call)}"), one.rank) for one in arrived)
    texts = (
        f"{names.ranks(ranks)} {words.word(len(ranks), *(LISTEN if listens else CONNECT))} {place}"
        for (listens, place), ranks in groups.items()
    )
    return words.shortly(sorted(texts), "; ")


def _listener(call: GroupCall) -> str:
    """``, where nothing listens``, or the process that does, if it is in no job."""
    if call.is_refused:
        return ", where nothing listens"
    listener = call.listener
    return f", where {listener.name} (pid {listener.pid}) listens" if listener and listener.name else ""


def _taken_in_words(facts: FindingFacts, twice: dict[int, list[Arrival]], arrived: Sequence[Arrival]) -> str:
    """``but 2 processes are rank 1 (actor Worker 1a2b3c4d and actor Worker 5e6f7a8b) and none is rank 2``."""
    index = facts.reduced.index
    texts = []
    for rank, some in twice.items():
        actors = (index.actor_of_worker(one.worker_id) for one in some)
        known = words.shortly([names.actor(actor) for actor in actors if actor])
        texts.append(
            f"{words.plural(len(some), 'process', 'processes')} are rank {rank}{f' ({known})' if known else ''}"
        )
    missing = set(arrived[0].call.group.ranks).difference(one.rank for one in arrived)
    none = f" and none is {names.ranks(missing)}" if missing else ""
    return f"but {words.shortly(texts)}{none}"


# Who has come


def come(facts: FindingFacts, narrator: Narrator) -> str | None:
    """``3 of 4 ranks are in init_process_group at 10.0.0.3:29500; rank 2 runs load_checkpoint at train.py:88``.

    None if no member makes a group, or the others run nothing that is known.
    """
    made = [one for one in facts.ranks.calls if one.call.operation in FORMING and one.missing]
    missing = [end for end in facts.known_ends if end.kind == "execution"]
    if not made or not missing or len(missing) < len(facts.known_ends):
        return None
    first = made[0]
    texts = list(dict.fromkeys(_missing(narrator, end, first, is_only=len(missing) == 1) for end in missing))
    size = len(first.call.group.ranks)
    of = _at(first) or f" of {names.process_group(first.call.group)}"
    return f"{len(set(first.ranks))} of {size} ranks are in {first.operation}{of}; {words.shortly(texts, '; ')}"


def _at(one: CollectiveCall) -> str:
    return f" at {one.call.group.address}{_listener(one.call)}" if is_meeting(one.call) else ""


def _missing(narrator: Narrator, end: Vertex, call: CollectiveCall, *, is_only: bool) -> str:
    """``rank 2 (Worker.init) runs load_checkpoint at train.py:88``."""
    details = narrator.details(end)
    rank = call.missing[0] if is_only and len(call.missing) == 1 else details.ranks.rank
    who = f"rank {rank} ({describe(end)})" if rank in call.missing else narrator.name(end)
    does = details.imports or f"{'sleeps in' if details.sleeps else 'runs'} {details.function or 'no Python'}"
    return f"{who} {does}{narrator.line(end)}"


# Stores


def store_headline(facts: FindingFacts) -> str | None:
    """``3 x Worker.setup wait in Store.wait ... for key ready at 10.0.0.1:29500, and no code that could set it runs``.

    None if no member waits for a store.
    """
    if (waits := at_stores(facts)) is None:
        return None
    _, store = _use_of(_store_waits(facts)[0])
    ends = "set it" if store.keys else "connect to it" if store.is_server else "serve it"
    return f"{waits}, and no code of the job that could {ends} can go on"


def at_stores(facts: FindingFacts) -> str | None:
    """``3 x Worker.setup wait in Store.wait ... for key ready at 10.0.0.1:29500``; None if no member waits for one."""
    if not (waits := _store_waits(facts)):
        return None
    first, (call, store) = waits[0], _use_of(waits[0])
    alike = [one for one in waits if describe(one) == describe(first) and _use_of(one) == _use_of(first)]
    kernel = first.wait.kernel if first.wait else None
    where = ends_in_words(facts.reduced.index, first, kernel) if kernel and not store.keys else ""
    name = describe(first) if len(alike) == 1 else words.times_of(describe(first), len(alike))
    others = f" ({len(waits) - len(alike)} more at other calls)" if len(waits) > len(alike) else ""
    return f"{name} {words.word(len(alike), 'waits', 'wait')} in {call}{where}{others}"


def store_fix(facts: FindingFacts) -> str | None:
    """What ends a wait for a store; None if no member waits for one."""
    if not (waits := _store_waits(facts)):
        return None
    _, store = _use_of(waits[0])
    if store.keys:
        return (
            f"Set {words.listed(list(store.keys))} before any code that could do so waits itself: look for the call "
            "that sets it, and for a branch on the rank, an error or an early return before that call."
        )
    if store.is_server:
        return f"Start all {store.size or 'the'} processes that connect to the store, or correct its world_size."
    return f"Start the server of the store (is_master=True) at {store.address}, or correct this address."


def _store_waits(facts: FindingFacts) -> list[Vertex]:
    """The members that wait for a store, those with most alike first."""
    found = [one for one in facts.members if one.wait and one.wait.kernel and one.wait.kernel.store]
    counts = Counter(map(_use_of, found))
    return sorted(found, key=lambda one: -counts[_use_of(one)])


def _use_of(vertex: Vertex) -> tuple[str, StoreUse]:
    """The call of a wait for a store, and what it is for; equal for all that wait for the same."""
    assert vertex.wait is not None, "it waits for a store"
    assert vertex.wait.kernel is not None, "it waits for a store"
    assert vertex.wait.kernel.store is not None, "it waits for a store"
    return vertex.wait.call, vertex.wait.kernel.store
