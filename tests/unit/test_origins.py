"""Whose code a frame runs is told by its file, also where that belongs to another Python than the reader's."""

import threading

import pytest

from dstack.probes.node.stacks.table import Origins


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
def test_whose_code_it_is(file: str, origin: str) -> None:
    assert Origins().of({"name": "f", "filename": file, "module": None, "line": 1, "locals": None}) == origin
