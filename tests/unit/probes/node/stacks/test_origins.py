"""The origin of a frame is found by its file, also for other Pythons than the reader's; exits by their frames."""

import os
import threading
from pathlib import Path

import pytest

import dstack
from dstack.observed.processes import StartPhase
from dstack.probes.node.stacks.origins import Origins, exit_function, shown_role, start_phase
from dstack.probes.node.thread_stacks import CodePosition, PythonThread, TextFrame


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        (threading.__file__, "stdlib"),
        (f"{Path(dstack.__file__).parent}/api.py", "library"),
        (f"{Path(dstack.__file__).parent}/_examples/two_actors.py", "user"),
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
    frame = TextFrame(CodePosition(file, "f", "C.f", 1))
    origins = Origins()

    assert (origins.of(frame), origins.of_position(frame.position), origins.is_user(frame)) == (
        origin,
        origin,
        origin == "user",
    )


def test_the_origin_of_a_shared_library_is_a_library() -> None:
    assert Origins().of(TextFrame(CodePosition("/home/me/train.c", "f", "f", 0, "/home/me/train.so"))) == "library"


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
    frames = [TextFrame(CodePosition(file, function, function, 1)) for file, function in reversed(outermost_first)]

    assert start_phase(frames) == phase


MAIN_FILE = "/home/me/train.py"
SHUTDOWN = (
    ("shutdown", "/lib/site-packages/ray/_private/worker.py"),
    ("wrapper", "/lib/site-packages/ray/_private/x.py"),
)


def frames(*places: tuple[str, str]) -> list[TextFrame]:
    return [TextFrame(CodePosition(file, function, f"Saver.{function}", 1)) for function, file in places]


@pytest.mark.parametrize(
    ("places", "name"),
    [
        ((("_shutdown", threading.__file__),), "threading"),
        ((("join", threading.__file__), ("_python_exit", "/f.py"), ("_shutdown", threading.__file__)), "threading"),
        (SHUTDOWN, "ray.shutdown"),
        ((("save", MAIN_FILE),), "atexit: Saver.save"),
        ((("_exit_function", "/lib/multiprocessing/util.py"), ("<module>", MAIN_FILE)), "multiprocessing"),
        ((*SHUTDOWN, ("<module>", MAIN_FILE)), None),
        ((("save", MAIN_FILE), ("_run_module_as_main", "<frozen runpy>")), None),
        ((("main", MAIN_FILE), ("_bootstrap", threading.__file__)), None),
        ((), None),
    ],
)
def test_the_outermost_frame_shows_that_a_process_exits(places: tuple[tuple[str, str], ...], name: str | None) -> None:
    assert exit_function(frames(*places), os.getpid()) == name


@pytest.mark.parametrize("place", [("<module>", MAIN_FILE), ("save", MAIN_FILE)])
def test_frames_of_c_around_the_program_do_not_count(place: tuple[str, str]) -> None:
    start = TextFrame(CodePosition("libc.c", "_start", "_start", 0, "/lib/libc.so"))
    own = frames(place)

    assert exit_function([*own, start], os.getpid()) == exit_function(own, os.getpid())


def test_a_program_that_embeds_python_may_call_any_function() -> None:
    assert exit_function(frames(("save", MAIN_FILE)), 1 << 30) is None


def test_the_main_thread_of_a_worker_that_exits_is_the_applications() -> None:
    exiting = PythonThread(1, os.getpid(), "MainThread", frames(("_shutdown", threading.__file__)))
    starting = PythonThread(1, os.getpid(), "MainThread", frames(("<module>", "/lib/site-packages/ray/worker.py")))
    roles = [shown_role(one, pid=os.getpid(), is_driver=False, origins=Origins()) for one in (exiting, starting)]

    assert roles == ["user", "ray"]
