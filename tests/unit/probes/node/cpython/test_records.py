"""Fields of a struct are unpacked as each by itself would be, in the order in which they were asked for."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.cpython.records import SIZES, Record

FIELDS = st.lists(st.integers(0, 30), min_size=2, max_size=12, unique=True).flatmap(
    lambda places: st.tuples(*(st.tuples(st.just(8 * place), st.sampled_from("QqIi")) for place in places))
)


@given(fields=FIELDS, doubled=st.booleans(), data=st.binary(min_size=400, max_size=400), at=st.integers(0, 100))
def test_fields_read_together_equal_fields_read_one_by_one(
    fields: tuple[tuple[int, str], ...], doubled: bool, data: bytes, at: int
) -> None:
    fields = (*fields, fields[0]) if doubled else fields
    record = Record(*fields)

    assert record.unpack(data, at) == tuple(
        struct.unpack_from(f"<{kind}", data, at + place)[0] for place, kind in fields
    )
    assert record.size == max(place + SIZES[kind] for place, kind in fields)
    assert record.unpack(data[: record.size]) == record.unpack(data)


def test_adjacent_fields_need_no_padding() -> None:
    record = Record((4, "i"), (0, "i"), (8, "Q"))

    assert record.size == 16
    assert record.unpack(struct.pack("<iiQ", -1, 2, 3)) == (2, -1, 3)


def test_too_few_bytes_are_an_error() -> None:
    with pytest.raises(struct.error):
        Record((0, "Q"), (8, "Q")).unpack(bytes(15))
