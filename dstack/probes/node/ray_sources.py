"""The functions and locals by which dstack recognises waits, checked against the source of the Ray that runs.

The file of a process's core worker library tells where its Ray is, also in a container; other libraries are beside it.
Functions are found by their ``def``, and locals as words in their body: a stack shows them by these names. Seen on Ray
2.46 and 2.60, torch 2.13 and anyio 4.16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dstack.call_sites import MAIN_LOOP, RAY_GET, RAY_WAIT, SITES
from dstack.libraries import data, serve, train
from dstack.libraries.compiled_graphs.reading import GRAPH_FILE, LOOPS, MONITOR
from dstack.libraries.data.reading import EXECUTOR as DATA_LOOP
from dstack.libraries.data.reading import OPERATOR
from dstack.libraries.serve.reading import CONTROLLER as SERVE_LOOP
from dstack.libraries.torch import DISTRIBUTED
from dstack.libraries.torch.reading import RANKS_IN
from dstack.libraries.train.reading import CHECKPOINTS, CONTROLLER_FILE, MANAGER_FILE, MEETING, WAITING
from dstack.libraries.train.reading import CONTROLLER as TRAIN_LOOP
from dstack.libraries.train.reading import TUNE as TUNE_LOOP
from dstack.observed.call_site import BOTH_RAYS, NEW_RAY, Place
from dstack.probes.node.asyncio.future_sources import ANYIO_FILE, GENERATOR_FILE
from dstack.probes.node.group_calls import STORE_FILE, WAIT
from dstack.probes.node.named_values import EXECUTOR
from dstack.probes.node.procfs.proc import Mapping
from dstack.probes.node.procfs.raylets import WORKER_SCRIPTS
from dstack.probes.node.ray_messages import NEW, OLDEST, LostPiece, Release, release_of_folder, text_of_file
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE, SETUP_HOOK, SETUP_HOOK_FILE

RAY = "/ray/"
"""The folder of Ray in the paths of places."""


@dataclass(frozen=True)
class SourcePart:
    """A function in a file of Ray or a library with ``names`` in its body; the whole file where ``function`` is empty.

    ``feeds`` is what dstack knows by it. Ray before ``since`` does not have it.
    """

    feeds: str
    file: str
    function: str = ""
    names: tuple[str, ...] = ()
    is_vital: bool = False
    since: Release = OLDEST

    @property
    def package(self) -> str:
        """The package of its file."""
        return self.file.removeprefix("/").partition("/")[0]

    @property
    def what(self) -> str:
        """Its file with its function and names."""
        return f"{self.file.removeprefix('/')} {', '.join(filter(None, (self.function, *self.names)))}".strip()


def _of_places() -> Iterator[SourcePart]:
    """The places of Ray that name or prove waits."""
    for site in SITES.values():
        for place in site.places:
            name = "idle workers" if site.is_idle else site.name
            yield from _of_place(place, name, is_vital=site is MAIN_LOOP)
    for place in (*data.ENDLESS, *serve.ENDLESS, *train.ENDLESS):
        yield from _of_place(place, f"the loop of {place.function}")


def _of_place(place: Place, name: str, *, is_vital: bool = False) -> Iterator[SourcePart]:
    since = {BOTH_RAYS: OLDEST, NEW_RAY: NEW}.get(place.seen)
    if place.file.startswith(RAY) and since is not None:
        names = (place.having,) if place.having else ()
        yield SourcePart(name, place.file, place.function, names, is_vital=is_vital, since=since)


PARTS = (
    SourcePart(RAY_GET.name, RAY_WORKER_FILE, "get_objects", ("object_refs", "timeout"), is_vital=True),
    SourcePart(RAY_WAIT.name, RAY_WORKER_FILE, "wait", ("ray_waitables", "num_returns", "timeout"), is_vital=True),
    SourcePart("waits for the next value of a generator", GENERATOR_FILE, "_next_sync", since=NEW),
    SourcePart("the actors of handles", "ray/actor.py", names=("_ray_actor_id",)),
    SourcePart("the concurrency groups of actors", "ray/_private/function_manager.py", EXECUTOR),
    SourcePart("setup hooks of workers", SETUP_HOOK_FILE, SETUP_HOOK),
    SourcePart("workers that are starting", WORKER_SCRIPTS[0]),
    SourcePart("the stages of compiled graphs", GRAPH_FILE, LOOPS[0], ("tasks",)),
    SourcePart("the drivers of compiled graphs", GRAPH_FILE, MONITOR, ("outer",)),
    SourcePart("the ranks of Ray Train", MEETING[0], MEETING[1], ("world_rank", "world_size"), since=NEW),
    SourcePart("the ranks of Ray Train", WAITING[0], WAITING[1], since=NEW),
    SourcePart("validation by Ray Train", MANAGER_FILE, CHECKPOINTS, ("consistency_mode", "timeout_s"), since=NEW),
    SourcePart("validation by Ray Train", CONTROLLER_FILE, CHECKPOINTS, since=NEW),
    SourcePart("the splits of Ray Data", data.SPLIT, "_barrier", ("split_idx",)),
    SourcePart("operators held back by Ray Data", *DATA_LOOP, since=NEW),
    SourcePart("operators held back by Ray Data", OPERATOR, names=("_in_task_submission_backpressure",), since=NEW),
    SourcePart("deployments of Ray Serve", *SERVE_LOOP, since=NEW),
    SourcePart("the state of Ray Train", *TRAIN_LOOP, since=NEW),
    SourcePart("the trials of Ray Tune", *TUNE_LOOP, since=NEW),
    SourcePart("the trials of Ray Tune", TUNE_LOOP[0], names=("_running_trials", "_pending_trials"), since=NEW),
    SourcePart("transfers of Ray Direct Transport", STORE_FILE, WAIT, ("obj_id",), since=NEW),
    *_of_places(),
    *(SourcePart("ranks of starting groups", file, function, tuple(names)) for file, function, *names in RANKS_IN),
    SourcePart("the members of new groups", DISTRIBUTED, "_new_group_with_tag", ("ranks", "group_name", "group_desc")),
    SourcePart("the members of new groups", DISTRIBUTED, "_store_based_barrier", ("rendezvous_count",)),
    SourcePart("the groups of collectives", DISTRIBUTED, "all_reduce", ("group",)),
    SourcePart("process groups", DISTRIBUTED, names=("_world", "_pg_group_ranks", "_pg_names", "_pg_backend_config")),
    SourcePart("calls that anyio runs in threads", ANYIO_FILE, "run", ("future",)),
)

NO_THREAD_CONTEXT = LostPiece(
    "thread_context_ was not found in _raylet.so, so dstack does not know the tasks of threads"
)
"""The library has it under another name or in another form, or the C library is one that dstack does not know."""


def folder_of(library: Mapping, pid: int) -> Path | None:
    """The folder of the Ray of a process, by the file of its core worker library; None where it cannot be opened."""
    folder = Path(library.path).parent
    paths = (Path(f"/proc/{pid}/root{folder}"), folder)
    return next((path for path in paths if text_of_file(path / "_version.py") is not None), None)


def lost_in(folder: Path, parts: Sequence[SourcePart] = PARTS) -> list[LostPiece]:
    """Those of the parts that the Ray in a folder and the libraries beside it do not have."""
    files: dict[str, str | None] = {}

    def text_of(file: str) -> str | None:
        if file not in files:
            files[file] = text_of_file(folder.parent / file.removeprefix("/"))
        return files[file]

    found = parts_in(folder, parts)
    return list(dict.fromkeys(lost for part in found for lost in _check(part, text_of)))


def parts_in(folder: Path, parts: Sequence[SourcePart] = PARTS) -> list[SourcePart]:
    """The parts that the Ray in a folder and the libraries beside it should have; none of a Ray of unknown version."""
    release = release_of_folder(folder)
    present = {part.package for part in parts if (folder.parent / part.package / "__init__.py").exists()}
    return [part for part in parts if part.since <= release and part.package in present]


def _check(part: SourcePart, text_of: Callable[[str], str | None]) -> Iterator[LostPiece]:
    file, text = part.file.removeprefix("/"), text_of(part.file)
    bodies = [] if text is None else list(_bodies(text, part.function)) if part.function else [text]
    if any(_has_all(body, part.names) for body in bodies):
        return
    what = f"function {part.function} in {file}" if part.function and text is not None else f"file {file}"
    if bodies:
        missing = [name for name in part.names if not any(_has_all(body, (name,)) for body in bodies)] or part.names
        what = f"{' and '.join(missing)} in {f'{part.function} of ' if part.function else ''}{file}"
    package = "Ray" if part.package == "ray" else part.package
    yield LostPiece(f"this {package} has no {what}, so dstack does not recognise {part.feeds}", part.is_vital)


def _bodies(text: str, function: str) -> Iterator[str]:
    """The source of each function of this name, up to what follows it in its class or module."""
    at = text.find(f"def {function}(")
    while at >= 0:
        before = text[text.rfind("\n", 0, at) + 1 : at]
        if before.strip() in ("", "async"):
            indent = len(before) - len(before.lstrip())
            end = re.compile(rf"^[ \t]{{0,{indent}}}[^\s)\]]", re.MULTILINE).search(text, at + 1)
            yield text[at : end.start() if end else len(text)]
        at = text.find(f"def {function}(", at + 1)


def _has_all(body: str, names: Iterable[str]) -> bool:
    return all(re.search(rf"\b{name}\b", body) for name in names)
