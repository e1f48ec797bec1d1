"""Files into which torch has dumped a flight recorder, and others that only have such a name."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from dstack.libraries.torch.dumps import MAX_OPERATIONS, MalformedDump, content
from dstack.observed.ledgers import MAX_RECORDED

RECORDED = Path(__file__).parent / "recorder_dumps"
"""Written by torch 2.13 in four actors of Ray 2.60, with paths of another machine: rank 2 left out the last call."""
DATA = [(RECORDED / f"rank_{rank}").read_bytes() for rank in range(4)]


def entry(number: int, **known: Any) -> dict[str, Any]:
    """An entry as NCCL's groups have it, by the sources of torch 2.15."""
    return {
        "frames": [{"name": "train", "filename": "/app/train.py", "line": 88}],
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 10**18 + number * 10**9,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["BFloat16"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
        **known,
    }


def dump(*entries: dict[str, Any], ranks: str = "[0, 1, 2]") -> dict[str, Any]:
    configured = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": configured, "pg_status": {}, "entries": list(entries)}


def test_what_torch_writes_is_read() -> None:
    whole, behind = content(DATA[0], 0), content(DATA[2], 2)

    (group,), (ledger,) = whole.groups, whole.ledgers
    assert (group.name, group.description, group.rank, group.ranks, group.world) == ("0", "default_pg", 0, (), "")
    assert (ledger.backend, ledger.entered, ledger.recorded, len(ledger.calls)) == ("gloo", 4, 4, 4)
    assert behind.ledgers[0].entered == 3
    assert (whole.version, whole.thread, whole.world_size) == ("2.10", "ray::Trainer.tr", None)
    what, frames = list(whole.distinct.positions)[-1]
    assert what == ("gloo", "all_reduce", ((4,),), ("float32",))
    assert ("/app/train.py", "train", 17) in frames


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_file_of_nccl_has_the_members_of_its_groups(protocol: int) -> None:
    last = entry(3, state="started", retired=False)
    sent = entry(3, profiling_name="nccl:send 0->1", is_p2p=True)
    found = content(pickle.dumps(dump(entry(1), entry(2), last, sent), protocol), 1)

    assert found.groups[0].ranks == (0, 1, 2)
    assert found.world_size == 3
    assert (found.ledgers[0].entered, found.ledgers[0].open) == (3, (3,))
    assert next(iter(found.distinct.positions))[0] == ("nccl", "all_reduce", ((4, 8),), ("bfloat16",))


def test_a_collective_that_has_timed_out_has_not_ended() -> None:
    """NCCL's watchdog retires it, too."""
    found = content(pickle.dumps(dump(entry(1, state="started", retired=True))), 0)

    assert found.ledgers[0].open == (1,)


def test_the_last_ones_of_each_group_are_kept() -> None:
    other = [entry(number, process_group=("1", "tp"), pg_id=1) for number in range(1, 4)]
    found = content(pickle.dumps(dump(*other, *map(entry, range(1, 2001)))), 0)

    by_name = {found.groups[one.group].name: one for one in found.ledgers}
    assert (by_name["0"].recorded, len(by_name["0"].calls)) == (2000, MAX_RECORDED)
    assert by_name["1"].recorded == 3


class Hostile:
    """Calls a function when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("code of the file was run",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle",
        pickle.dumps(Hostile()),
        pickle.dumps({**dump(), "entries": [Hostile()]}),
        b"cos\nsystem\n(S'true'\ntR.",
        DATA[0][:-1],
        DATA[0][:700],
        pickle.dumps([1]),
        pickle.dumps({}),
        pickle.dumps({1: 2}),
        pickle.dumps({(1,): 2}),
        pickle.dumps(dump(entry(-1))),
        pickle.dumps(dump(entry(1 << 63))),
        pickle.dumps(dump(entry(1, input_sizes=3))),
        pickle.dumps(dump(entry(1, input_dtypes=[3]))),
        pickle.dumps(dump(entry(1, process_group=("0",)))),
        pickle.dumps(dump(entry(1), ranks="[zero]")),
        pickle.dumps(dump() | {"entries": "none"}),
        b"]q\x00h\x00a.",
        b"\x80\x02}r\xff\xff\xff\x7fX\xff\xff\xff\xff.",
        b"(" * 100 + b"u.",
        b"N" * (MAX_OPERATIONS + 1),
    ],
    ids=range(22),
)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedDump):
        content(data, 0)


def test_a_damaged_file_is_read_or_malformed() -> None:
    rng = random.Random(7)
    for _ in range(300):
        data = bytearray(DATA[0])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = content(bytes(data), 0)
        except MalformedDump:
            continue
        assert all(one.fits(len(found.groups), len(found.distinct.positions)) for one in found.ledgers)


def test_a_place_in_the_memo_takes_no_memory() -> None:
    """As many places as :mod:`pickle` would make for this one take 32 GiB."""
    body = pickle.dumps(dump(entry(1)), 2)
    assert body.startswith(b"\x80\x02}q\x00")

    found = content(body[:3] + b"r" + struct.pack("<I", (1 << 32) - 1) + body[5:], 0)
    assert found.ledgers[0].entered == 1
