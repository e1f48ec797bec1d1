"""What a file has into which torch has dumped a flight recorder, as its watchdog does when a collective times out.

The file is a pickle of plain values, but whoever may write to its folder may have made it. So it is decoded here and
not by :mod:`pickle`: no code is called, the keys of dicts are texts, and the number of values is bounded. The opcodes
are those that torch writes, and those of :func:`pickle.dumps` for plain values up to protocol 4.

Seen on torch 2.13 and 2.15 with gloo (version 2.10 of the format); NCCL's files in the sources of torch 2.5 to 2.15.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstack.libraries.torch.backends import NAMES, BackendName
from dstack.libraries.torch.ledgers import DistinctRecords
from dstack.libraries.torch.recorder import MAX_FRAMES, MAX_TEXT, MAX_VALUES, OPERATION, SCALAR_TYPES, Record, What
from dstack.observed.calls import TORCH, ProcessGroup
from dstack.observed.ledgers import MAX_DUMPED_GROUPS, MAX_DUMPED_RANKS, MAX_RECORDED, GroupLedger

MAX_OPERATIONS = 2_000_000
"""Some 150 for each collective."""
CONSTANTS: Mapping[bytes, bool | None] = {pickle.NONE: None, pickle.NEWTRUE: True, pickle.NEWFALSE: False}
NEW: Mapping[bytes, type] = {pickle.EMPTY_LIST: list, pickle.EMPTY_DICT: dict, pickle.EMPTY_TUPLE: tuple}
NUMBERS = {pickle.BININT: "<i", pickle.BININT1: "<B", pickle.BININT2: "<H", pickle.BINFLOAT: ">d"}
SIZED = {pickle.BINUNICODE: "<I", pickle.SHORT_BINUNICODE: "<B", pickle.LONG1: "<B"}
"""The formats of numbers, and of the sizes of texts and long numbers."""
TUPLES = {pickle.TUPLE1: 1, pickle.TUPLE2: 2, pickle.TUPLE3: 3}
PUTS, GETS = {pickle.BINPUT: "<B", pickle.LONG_BINPUT: "<I"}, {pickle.BINGET: "<B", pickle.LONG_BINGET: "<I"}
IGNORED = {pickle.PROTO: 1, pickle.FRAME: 8}
"""The sizes of what follows opcodes that add no value."""
C10_TYPES = (
    *("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf", "ComplexFloat"),
    *("ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16"),
)
TYPES = dict(zip(C10_TYPES, SCALAR_TYPES, strict=True))
"""The types of tensors by the names that a file has of them."""
DEFAULT_GROUP = "default_pg"


class MalformedDump(ValueError):
    """Raised for bytes that are no dump of a flight recorder."""


@dataclass(frozen=True)
class Dumped:
    """What a :class:`dstack.observed.ledgers.RecorderDump` has; frames are file, function and line."""

    version: str
    thread: str
    world_size: int | None
    groups: tuple[ProcessGroup, ...]
    ledgers: tuple[GroupLedger, ...]
    distinct: DistinctRecords


def content(data: bytes, rank: int) -> Dumped:
    """The content of the file of a rank. Raises :class:`MalformedDump`."""
    try:
        return _content(_Decoder(data).value(), rank)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise MalformedDump from error


def _content(dump: Any, rank: int) -> Dumped:
    entries, configured = dump["entries"], dump["pg_config"].values()
    members = {(one["name"], one["desc"]): _ranks(one["ranks"]) for one in configured}
    groups, ledgers, distinct = [], [], DistinctRecords()
    for position, ((name, description, backend), last) in enumerate(_last_by_group(entries).items()):
        ranks = members.get((name, description), ())
        groups.append(ProcessGroup(library=TORCH, world="", name=name, rank=rank, ranks=ranks, description=description))
        ledgers.append(distinct.ledger(position, backend, last[-1].number, last))
    return Dumped(
        version=_text(dump["version"])[:40],
        thread=_text(entries[-1].get("thread_name", ""))[:40] if entries else "",
        world_size=next((len(ranks) for (_, text), ranks in members.items() if text == DEFAULT_GROUP and ranks), None),
        groups=tuple(groups),
        ledgers=tuple(ledgers),
        distinct=distinct,
    )


def _last_by_group(entries: Sequence[Any]) -> dict[tuple[str, str, BackendName], list[Record]]:
    """The last collectives of each group and backend, in their order."""
    found: dict[tuple[str, str, BackendName], list[Record]] = {}
    for entry in reversed(entries):
        name = OPERATION.fullmatch(_text(entry["profiling_name"]))
        backend = next((one for one in NAMES if name and one == name[1]), None)
        if entry["is_p2p"] or name is None or backend is None:
            continue
        group, description = map(_text, entry["process_group"])
        key = (group, description, backend)
        if key in found or len(found) < MAX_DUMPED_GROUPS:
            own = found.setdefault(key, [])
            if len(own) < MAX_RECORDED:
                own.append(_record(entry, group, name))
    return {key: own[::-1] for key, own in found.items()}


def _record(entry: Any, group: str, name: re.Match[str]) -> Record:
    return Record(
        group=group,
        number=_natural(entry["collective_seq_id"]),
        what=What(
            backend=name[1],
            operation=name[2],
            sizes=tuple(tuple(map(_natural, one[:MAX_VALUES])) for one in entry["input_sizes"][:MAX_VALUES]),
            types=tuple(TYPES.get(_text(one), _text(one)[:40]) for one in entry["input_dtypes"][:MAX_VALUES]),
        ),
        frames=tuple(map(_frame, entry.get("frames", [])[:MAX_FRAMES])),
        created=_natural(entry["time_created_ns"]) / 1e9,
        has_ended=entry["state"] == "completed" or (name[1] == "gloo" and bool(entry["retired"])),
    )


def _frame(frame: Any) -> tuple[str, str, int]:
    return _text(frame["filename"]), _text(frame["name"]), _natural(frame["line"])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value.__class__)
    return value[:MAX_TEXT]


def _natural(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise TypeError(value.__class__)
    return value


def _ranks(text: str) -> tuple[int, ...]:
    """``[0, 1, 3]``, the ranks of a group."""
    ranks = tuple(int(one) for one in text.strip("[]").split(",", MAX_DUMPED_RANKS - 1) if one.strip())
    return tuple(map(_natural, ranks))


class _Decoder:
    """A machine for the opcodes of plain values. Raises :class:`MalformedDump`, and what wrong operands raise."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._steps: Mapping[bytes, Callable[[bytes], None]] = {
            **dict.fromkeys(CONSTANTS, self._constant),
            **dict.fromkeys(NEW, self._new),
            **dict.fromkeys(NUMBERS, self._number),
            **dict.fromkeys(SIZED, self._sized),
            **dict.fromkeys((*TUPLES, pickle.TUPLE), self._tuple),
            **dict.fromkeys((*PUTS, pickle.MEMOIZE), self._put),
            **dict.fromkeys(GETS, self._get),
            **dict.fromkeys(IGNORED, self._ignore),
            pickle.MARK: self._mark,
            pickle.APPEND: self._append,
            pickle.APPENDS: self._append,
            pickle.SETITEM: self._set,
            pickle.SETITEMS: self._set,
        }

    def value(self) -> Any:
        """The only value that the bytes stand for."""
        steps = self._steps
        for _ in range(MAX_OPERATIONS):
            code = self._take(1)
            if code == pickle.STOP:
                (value,) = self._stack
                return value
            steps[code](code)
        raise MalformedDump("too many values")

    def _take(self, size: int) -> bytes:
        at = self._at
        self._at = at + size
        if self._at > len(self._data):
            raise MalformedDump("the end is missing")
        return self._data[at : self._at]

    def _unpacked(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _constant(self, code: bytes) -> None:
        self._stack.append(CONSTANTS[code])

    def _new(self, code: bytes) -> None:
        self._stack.append(NEW[code]())

    def _number(self, code: bytes) -> None:
        self._stack.append(self._unpacked(NUMBERS[code]))

    def _sized(self, code: bytes) -> None:
        data = self._take(self._unpacked(SIZED[code]))
        is_number = code == pickle.LONG1
        self._stack.append(int.from_bytes(data, "little", signed=True) if is_number else data.decode())

    def _tuple(self, code: bytes) -> None:
        items = self._popped(TUPLES[code]) if code in TUPLES else self._above_mark()
        self._stack.append(tuple(items))

    def _put(self, code: bytes) -> None:
        place = self._unpacked(PUTS[code]) if code in PUTS else len(self._memo)
        self._memo[place] = self._stack[-1]

    def _get(self, code: bytes) -> None:
        self._stack.append(self._memo[self._unpacked(GETS[code])])

    def _ignore(self, code: bytes) -> None:
        self._take(IGNORED[code])

    def _mark(self, _: bytes) -> None:
        self._marks.append(len(self._stack))

    def _above_mark(self) -> list[Any]:
        return self._popped(len(self._stack) - self._marks.pop())

    def _popped(self, count: int) -> list[Any]:
        if not 0 <= count <= len(self._stack):
            raise MalformedDump("no such values")
        found = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return found

    def _append(self, code: bytes) -> None:
        items = self._popped(1) if code == pickle.APPEND else self._above_mark()
        if not isinstance(self._stack[-1], list):
            raise MalformedDump("no list")
        self._stack[-1].extend(items)

    def _set(self, code: bytes) -> None:
        items = self._popped(2) if code == pickle.SETITEM else self._above_mark()
        if not all(isinstance(key, str) for key in items[::2]):
            raise MalformedDump("a key is no text")
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))
