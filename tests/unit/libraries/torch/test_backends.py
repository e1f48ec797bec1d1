"""The offset of a backend's counter, from the machine code of torch's own functions."""

from __future__ import annotations

import struct

import pytest

from dstack.libraries.torch.backends import counter_in

NEXT_TAG_2_13 = "8b87d40000008d5001 8997d4000000c3"
NEXT_TAG_2_14 = "534889fbe8a75c6afa 8b83f40000008d50018993f40000005bc3"
SEQUENCE_2_15 = "488b8718040000c3 0f1f840000000000"


@pytest.mark.parametrize(
    ("code", "offset"),
    [
        (NEXT_TAG_2_13, 212),
        (NEXT_TAG_2_14, 244),
        (SEQUENCE_2_15, 1048),
        ("f30f1efa" + SEQUENCE_2_15, 1048),
        ("8b87d40000008d5001 8997d8000000c3", None),
        ("488b87ffffffff c3", None),
        ("31c0c3", None),
        ("", None),
    ],
    ids=["gloo 2.13", "gloo 2.14", "NCCL 2.15", "with a landing pad", "two fields", "before the object", "0", "none"],
)
def test_the_counter_on_x86_64(code: str, offset: int | None) -> None:
    assert counter_in(bytes.fromhex(code), "x86_64") == offset


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        ((0xF9422400, 0xD65F03C0), 1096),  # NCCL of torch 2.13: ldr x0, [x0, 1096]; ret
        ((0xAA0003E1, 0xB940D400, 0x11000402, 0xB900D422, 0xD65F03C0), 212),  # gloo of 2.13: ldr, add, str, ret
        ((0xB940D401, 0xD65F03C0, 0xB900D400), None),
        ((0xB940D401, 0x11000420, 0xB900D800, 0xD65F03C0), None),
        ((0xD65F03C0,), None),
    ],
    ids=["a load", "a load and a store", "two functions", "two fields", "nothing"],
)
def test_the_counter_on_aarch64(words: tuple[int, ...], offset: int | None) -> None:
    assert counter_in(struct.pack(f"<{len(words)}I", *words), "aarch64") == offset
