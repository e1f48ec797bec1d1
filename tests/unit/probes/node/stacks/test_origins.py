"""The origin of a frame is found by its file, also for other Pythons than the reader's."""

import threading

import pytest

from dstack.observed import StartPhase
from dstack.probes.node.stacks.origins import Origins, start_phase
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


RAY = "/venv/lib/python3.11/site-packages/ray/_private/"
SCRIPT, MAIN_LOOP = (f"{RAY}workers/default_worker.py", "<module>"), (f"{RAY}worker.py", "main_loop")
CONNECT, HOOK = (f"{RAY}worker.py", "connect"), (f"{RAY}runtime_env/setup_hook.py", "load_and_execute_setup_hook")
IMPORT, MINE = ("<frozen importlib._bootstrap>", "_find_and_load"), ("/home/me/train.py", "load")


@pytest.mark.parametrize(
    ("outermost_first", "phase"),
    [
        ([SCRIPT, CONNECT], "start"),
        ([SCRIPT, HOOK, MINE], "setup hook"),
        ([SCRIPT, HOOK, IMPORT, MINE], "setup hook"),
        ([SCRIPT, IMPORT, MINE], "import"),
        ([IMPORT, MINE], "import"),
        ([SCRIPT, MAIN_LOOP], None),
        ([SCRIPT, MAIN_LOOP, MINE], None),
        ([SCRIPT], None),
        ([("/usr/lib/python3.11/threading.py", "_shutdown"), MINE], None),
        ([], None),
    ],
)
def test_a_worker_is_starting_until_it_comes_to_its_loop(
    outermost_first: list[tuple[str, str]], phase: StartPhase | None
) -> None:
    frames = [ShownFrame(Position(file, function, function, 1)) for file, function in reversed(outermost_first)]

    assert start_phase(frames) == phase
