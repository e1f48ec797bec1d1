"""Hypothesis strategies of snapshots: any values that the model's types allow, with valid indices."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from dstack.model.snapshot import SCHEMA, VERSION, Sample, Snapshot, WorkerSample
from dstack.observed.calls import NEEDS, Holder, Need, ProcessGroup
from dstack.observed.ledgers import Collective, GroupLedger, RecorderDump
from dstack.observed.processes import Coroutine, Frame, Process, Thread

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(0, 4e9),
    bool: st.booleans(),
    types.NoneType: st.none(),
}

Execution = TypeVar("Execution", Thread, Coroutine)
_ANY_TEXT = st.text(max_size=8)
_WORDS = "ALIVE CPU CREATED DEAD INFEASIBLE PENDING PENDING_ARGS_AVAIL PENDING_NODE_ASSIGNMENT SUBMITTED_TO_WORKER"
_RELATED_TEXT = st.sampled_from([*"abcd", *_WORDS.split(), "\ud800\x1b"])


@cache
def values_of(hint: Any, text: st.SearchStrategy[str] = _ANY_TEXT) -> st.SearchStrategy[Any]:
    """Values of a type that the model uses."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is str:
        return text
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Need:
        needs: list[Any] = [*NEEDS.values()]
        return st.one_of([values_of(need, text) for need in needs])
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(arg, text) for arg in args])
    if origin is tuple and args == (Process, ...):
        return st.lists(_childless(text), max_size=1).map(tuple)
    if origin is tuple and args[1:] == (...,):
        return st.lists(values_of(args[0], text), max_size=1 if args[0] is Holder else 3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(arg, text) for arg in args])
    if origin is dict:
        return st.dictionaries(values_of(args[0], text), values_of(args[1], text), max_size=2)
    return st.builds(hint, **{name: values_of(field, text) for name, field in get_type_hints(hint).items()})


def _childless(text: st.SearchStrategy[str]) -> st.SearchStrategy[Process]:
    fields = {name: field for name, field in get_type_hints(Process).items() if name != "children"}
    return st.builds(Process, **{name: values_of(field, text) for name, field in fields.items()})


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Snapshots of this version with valid indices."""
    return values_of(Snapshot).map(_with_valid_indices)


def related_snapshots() -> st.SearchStrategy[Snapshot]:
    """Snapshots of few ids and words, so that many parts refer to each other, consistently or not."""
    return values_of(Snapshot, _RELATED_TEXT).map(_with_valid_indices)


def _with_valid_indices(snapshot: Snapshot) -> Snapshot:
    frames = snapshot.frames or (Frame(function="f", file="f.py", line=1),)
    stacks = tuple(tuple(i % len(frames) for i in stack) for stack in snapshot.stacks) or ((0,),)

    def execution(it: Execution) -> Execution:
        stack = it.stack % len(stacks)
        depth = len(stacks[stack])
        call = dataclasses.replace(it.call, frame=it.call.frame % depth) if it.call and depth else None
        return dataclasses.replace(it, stack=stack, call=call)

    def process(it: Process) -> Process:
        return dataclasses.replace(
            it,
            threads=tuple(map(execution, it.threads)),
            coroutines=tuple(map(execution, it.coroutines)),
            ended_tasks=tuple(dataclasses.replace(one, stack=one.stack % len(stacks)) for one in it.ended_tasks),
            children=tuple(map(process, it.children)),
            collectives=tuple(dataclasses.replace(one, stack=one.stack % len(stacks)) for one in it.collectives),
            ledgers=tuple(
                _with_valid_positions(one, it.process_groups, it.collectives) for one in it.ledgers if it.process_groups
            ),
        )

    def dump(it: RecorderDump) -> RecorderDump:
        return dataclasses.replace(
            it,
            collectives=tuple(dataclasses.replace(one, stack=one.stack % len(stacks)) for one in it.collectives),
            ledgers=tuple(_with_valid_positions(one, it.groups, it.collectives) for one in it.ledgers if it.groups),
        )

    def worker(it: WorkerSample) -> WorkerSample:
        return msgspec.structs.replace(it, process=it.process and process(it.process))

    def sample(it: Sample) -> Sample:
        return msgspec.structs.replace(it, workers=tuple(map(worker, it.workers)))

    return msgspec.structs.replace(
        snapshot,
        schema=SCHEMA,
        version=VERSION,
        frames=frames,
        stacks=stacks,
        samples=tuple(map(sample, snapshot.samples)),
        recorder_dumps=tuple(map(dump, snapshot.recorder_dumps)),
    )


def _with_valid_positions(
    ledger: GroupLedger, groups: Sequence[ProcessGroup], collectives: Sequence[Collective]
) -> GroupLedger:
    calls = tuple(call % len(collectives) for call in ledger.calls if collectives)
    group, recorded = ledger.group % len(groups), max(ledger.recorded, len(calls))
    return dataclasses.replace(ledger, group=group, calls=calls, recorded=recorded)


def attacking_snapshots(texts: Sequence[str]) -> st.SearchStrategy[Snapshot]:
    """Snapshots whose texts are some of these, or few ids and words so that parts refer to each other."""
    return values_of(Snapshot, st.one_of(_RELATED_TEXT, st.sampled_from(texts))).map(_with_valid_indices)
