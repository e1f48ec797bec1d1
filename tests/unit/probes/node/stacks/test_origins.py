"""Whose code a frame runs is told by its file, also where that belongs to another Python than the reader's."""

import threading

import pytest

from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.threads import Position, ShownFrame


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        (threading.__file__, "stdlib"),
        ("<frozen importlib._bootstrap>", "stdlib"),
        ("/opt/other/lib/python3.10/concurrent/futures/_base.py", "stdlib"),
        ("/usr/lib64/python3.12/threading.py", "stdlib"),
        ("/opt/other/lib/python3.10/site-packages/ray/_private/worker.py", "ray"),
        ("/opt/other/lib/python3.10/site-packages/rays/worker.py", "library"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "library"),
        ("/home/me/train.py", "user"),
        ("train.py", "user"),
        ("/home/me/lib/python3.10.py", "user"),
    ],
)
def test_the_origin_of_a_file_is_found(file: str, origin: str) -> None:
    frame = ShownFrame(Position(file, "f", "C.f", 1))
    origins = Origins()

    assert (origins.of(frame), origins.of_position(frame.position), origins.is_user(frame)) == (
        origin,
        origin,
        origin == "user",
    )


def test_the_origin_of_a_shared_library_is_a_library() -> None:
    assert Origins().of(ShownFrame(Position("/home/me/train.c", "f", "f", 0, "/home/me/train.so"))) == "library"
