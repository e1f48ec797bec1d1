"""The origin of a frame's code: the user, a library, Ray or the standard library."""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sysconfig
from collections.abc import Sequence

from dstack.call_sites import SHUTDOWN
from dstack.observed.processes import Origin, Role, StartPhase
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.raylets import WORKER_SCRIPTS
from dstack.probes.node.thread_stacks import AnyFrame, AnyThread, CodePosition, is_event_loop, is_in

PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]*)")
STANDARD = re.compile(r"<frozen |/(?:.*/)?lib(?:64)?/python3\.\d+/")
"""Paths of installed packages, and of standard libraries of other Pythons than the reader's."""


def package_of(file: str) -> str:
    """The package of a file of a library, or the module of one of the standard library: ``zmq``, ``subprocess``."""
    if packages := PACKAGES.findall(file):
        return str(packages[-1]).removesuffix(".py")
    return file.rpartition("/")[2].removesuffix(".py")


class Origins:
    """The origins of frames, by the paths of their files."""

    def __init__(self) -> None:
        ray, own = importlib.util.find_spec("ray"), importlib.util.find_spec("dstack")
        folders = (own and own.submodule_search_locations) or ()
        libraries = [*site.getsitepackages(), site.getusersitepackages()]
        standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
        self._roots: tuple[tuple[str, Origin], ...] = (
            *((path + "/_examples/", "user") for path in folders),  # the programs of dstack demo
            *((path + "/", "ray") for path in ((ray and ray.submodule_search_locations) or ())),
            *((path + "/", "library") for path in libraries),
            *((path + "/", "library") for path in folders),  # also in a checkout
            *((path + "/", "stdlib") for path in standard),
        )
        self._of_files: dict[str, Origin] = {}

    def add_ray(self, folder: str) -> None:
        """Add the folder of a Ray that a process runs, which may be in no folder of packages."""
        root: tuple[str, Origin] = f"{folder}/", "ray"
        if root not in self._roots:
            self._roots = (root, *self._roots)
            self._of_files.clear()

    def of(self, frame: AnyFrame) -> Origin:
        """The origin of a frame."""
        return self.of_position(frame.position)

    def of_position(self, position: CodePosition) -> Origin:
        """The origin of a line."""
        if position.origin:
            return position.origin
        if position.module:
            return "library"
        origin = self._of_files.get(position.file)
        if origin is None:
            origin = self._of_files[position.file] = self._find(position.file)
        return origin

    def _find(self, file: str) -> Origin:
        for root, origin in self._roots:
            if file.startswith(root):
                return origin
        if packages := PACKAGES.findall(file):
            return "ray" if packages[-1] == "ray" else "library"
        return "stdlib" if STANDARD.match(file) or not file else "user"

    def is_user(self, frame: AnyFrame) -> bool:
        """Whether a frame runs the user's own code."""
        return self.of_position(frame.position) == "user"


RAY_WORKER_FILE = "ray/_private/worker.py"
SETUP_HOOK_FILE, SETUP_HOOK = "ray/_private/runtime_env/setup_hook.py", "load_and_execute_setup_hook"
"""Where a worker runs its ``worker_process_setup_hook``; seen on Ray 2.46 and 2.60."""
IMPORTS = "importlib._bootstrap>"
PROGRAMS = ("<module>", "_run_module_as_main", "_bootstrap")
"""The outermost functions of a main thread that runs its program; the last one after a fork in a thread."""


def role_of(thread: AnyThread, task_id: str | None, *, pid: int, is_driver: bool, origins: Origins) -> Role:
    """The role of a thread that runs this Ray task or none.

    A thread of Ray's that has a task without frames of it is fetching arguments, storing results, or yielding an item.
    """
    role = shown_role(thread, pid=pid, is_driver=is_driver, origins=origins)
    runs_in_cpp = role == "ray" and task_id is not None and not is_driver and not is_made_by_python(thread)
    return "task" if runs_in_cpp else role


def shown_role(thread: AnyThread, *, pid: int, is_driver: bool, origins: Origins) -> Role:
    """The role of a thread by its frames.

    A worker's main thread is in ``main_loop`` and runs sync tasks above it; threaded actors run theirs on threads
    that C++ made, so without Python's bootstrap frames. Seen on Ray 2.46 and 2.60.
    """
    frames = thread.frames
    if is_event_loop(thread):
        return "loop"
    if not frames:
        return "ray"
    if thread.os_thread_id == pid:
        is_users = is_driver or start_phase(frames) or _known_exit(frames) is not None
        return "user" if is_users else "ray" if _is_idle(thread) else "task"
    if is_made_by_python(thread):
        return "user" if any(map(origins.is_user, frames)) else "ray"
    return "user" if is_driver else "task"


def start_phase(frames: Sequence[AnyFrame]) -> StartPhase | None:
    """What a worker's main thread does before its loop, None for one that is in its loop, or ends.

    Python imports ``site`` before the script. A worker that moves objects to disk stays at a line of the script.
    """
    if len(frames) < 2 or any(is_in(frame, RAY_WORKER_FILE, "main_loop") for frame in frames):
        return None
    if not any(is_in(frames[-1], file) for file in (*WORKER_SCRIPTS, IMPORTS)):
        return None
    if any(is_in(frame, SETUP_HOOK_FILE, SETUP_HOOK) for frame in frames):
        return "setup hook"
    return "import" if any(is_in(frame, IMPORTS) for frame in frames) else "start"


def exit_function(frames: Sequence[AnyFrame], pid: int) -> str | None:
    """The function in which a process exits, by the frames of its main thread; None while its program runs.

    The program is the outermost frame until it ends. Then the interpreter calls its exit functions from C:
    ``threading._shutdown``, and those of ``atexit``. A program that embeds Python may call any function from C. Seen on
    CPython 3.10 to 3.13.
    """
    if known := _known_exit(frames):
        return known
    outermost = _outermost(frames)
    if outermost is None or outermost.position.function in PROGRAMS:
        return None
    runs_python = os.path.basename(proc.program(pid)).startswith("python")
    return f"atexit: {outermost.position.qualified}" if runs_python else None


def _known_exit(frames: Sequence[AnyFrame]) -> str | None:
    """An exit function of Python's own or of Ray. A child of multiprocessing exits within the frames of its parent."""
    if any(is_in(frame, "/multiprocessing/util.py", "_exit_function") for frame in frames):
        return "multiprocessing"
    outermost = _outermost(frames)
    if outermost is None or outermost.position.function in PROGRAMS:
        return None
    if any(is_in(frame, RAY_WORKER_FILE, "shutdown") for frame in frames):
        return SHUTDOWN.name
    return "threading" if is_in(outermost, "/threading.py", "_shutdown") else None


def _outermost(frames: Sequence[AnyFrame]) -> AnyFrame | None:
    """The outermost frame of Python: those of C are around it, where they were read."""
    return next((frame for frame in reversed(frames) if frame.position.module is None), None)


def is_made_by_python(thread: AnyThread) -> bool:
    """Whether the thread began in Python's own bootstrap; those that C++ made, and main threads, did not."""
    frames = thread.frames
    return bool(frames) and frames[-1].position.function == "_bootstrap" and "threading" in frames[-1].position.file


def _is_idle(thread: AnyThread) -> bool:
    """Whether a worker's main thread runs no task: it waits for one, or has not begun to."""
    is_main_loop = [is_in(frame, RAY_WORKER_FILE, "main_loop") for frame in thread.frames]
    return is_main_loop[0] or not any(is_main_loop)
