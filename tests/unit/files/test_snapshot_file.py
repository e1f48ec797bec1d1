"""Snapshot files: saved snapshots load again, and any other content is rejected."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given

from dstack.errors import SnapshotFileError, UsageError
from dstack.files import document_file
from dstack.files.file_output import CHECK_STDOUT
from dstack.files.snapshot_file import dumps, load, loads, require_writable, save
from dstack.model.snapshot import Actor, Node, Sample, Snapshot, Worker, WorkerSample
from dstack.observed.calls import Call, Refs
from dstack.observed.node import Failure, Task
from dstack.observed.processes import Frame, Process, Thread
from tests.fuzzing.effort import examples
from tests.fuzzing.mutations import by_bytes
from tests.unit.support.random_snapshots import snapshots

SNAPSHOT = Snapshot(
    dstack_version="0.1.0",
    taken_at=1_700_000_000.5,
    address="10.0.0.1:6379",
    ray_version="2.60.0",
    nodes=(Node("aa", "10.0.0.1", resources={"CPU": 4.0}),),
    actors=(Actor("bb", "01", "Player", "ALIVE", name="é\n"),),
    workers=(Worker("cc", "aa", "10.0.0.1", 10001, 42),),
    frames=(
        Frame(function="get_objects", file="worker.py", line=10, origin="ray"),
        Frame(function="ping", file="app.py", line=3),
    ),
    stacks=((0, 1), (1,)),
    sources={"app.py": {3: "    return ray.get(other.pong.remote())"}},
    samples=(
        Sample(
            began_s=0.1,
            ended_s=0.4,
            workers=(
                WorkerSample(
                    "cc",
                    ("dd",),
                    Process(
                        pid=42,
                        started_at=1_699_999_000.0,
                        threads=(
                            Thread(
                                os_thread_id=42,
                                name="MainThread",
                                stack=0,
                                role="task",
                                call=Call(site="ray.get", frame=1, need=Refs(refs=("ee",))),
                            ),
                            Thread(os_thread_id=43, name="worker", stack=1, role="user", locals={"0": {"x": "1"}}),
                        ),
                    ),
                ),
            ),
            tasks=(
                Task(
                    task_id="dd",
                    owner_id="cc",
                    name="Player.ping",
                    kind="ACTOR_TASK",
                    state="SUBMITTED_TO_WORKER",
                    job_id="01",
                    attempt=1,
                ),
            ),
        ),
    ),
    failures=(Failure(stage="stacks", reason="py-spy took too long", pid=7, elapsed_s=3.0),),
)
TEXT = dumps(SNAPSHOT)
SUFFIXES = (".json", ".json.gz")


ENDED = b'{"coroutine_id":"0x1","name":"","function":"serve","stack":99,"error":"KeyError"}'


def edited(**changes: Any) -> bytes:
    """The text of a good file with other top-level members."""
    return json.dumps(json.loads(TEXT) | changes).encode()


def written(path: Path, text: bytes) -> Path:
    """A file with this text, compressed if its suffix is that of gzip."""
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def rejection(read: Callable[[], object]) -> str:
    """The error message of loading the file; it must be one printable line."""
    with pytest.raises(SnapshotFileError) as error:
        read()
    sentence = str(error.value)
    assert sentence.isprintable()
    assert len(sentence) < 500
    return sentence


# Round trips


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_saved_snapshot_loads_unchanged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"

    save(SNAPSHOT, path)

    assert load(path) == SNAPSHOT
    assert os.listdir(tmp_path) == [path.name]


@given(snapshots())
@examples(150, suppress_health_check=[HealthCheck.too_slow])
def test_any_saved_snapshot_loads_unchanged(snapshot: Snapshot) -> None:
    assert loads(dumps(snapshot)) == snapshot


def test_the_suffix_selects_gzip(tmp_path: Path) -> None:
    save(SNAPSHOT, tmp_path / "s.json")
    save(SNAPSHOT, tmp_path / "s.JSON.GZ")

    assert (tmp_path / "s.json").read_bytes() == TEXT
    assert gzip.decompress((tmp_path / "s.JSON.GZ").read_bytes()) == TEXT


def test_a_file_begins_with_its_schema() -> None:
    assert TEXT.startswith(b'{"schema":"dstack.snapshot","version":[2,5],"dstack_version":"0.1.0",')


def test_names_that_are_no_unicode_are_saved() -> None:
    name = os.fsdecode(b"caf\xe9.py")
    snapshot = Snapshot(
        dstack_version="0", taken_at=0, address="", ray_version="", notes=(name,), sources={name: {1: "x"}}
    )

    read = loads(dumps(snapshot))

    assert read.notes == ("caf\\udce9.py",)
    assert read.sources == {"caf\\udce9.py": {1: "x"}}


# Versions


def test_a_newer_minor_version_with_unknown_members_loads() -> None:
    nodes = [{"node_id": "aa", "ip": "10.0.0.1", "zone": {"a": [1]}}]

    read = loads(edited(version=[2, 1], flames=[{"hot": True}], nodes=nodes))

    assert read.nodes == (Node("aa", "10.0.0.1"),)
    assert read.version == (2, 1)


def test_fields_with_defaults_may_be_left_out() -> None:
    failures = [{"stage": "stacks", "reason": "py-spy timed out after 5.0 s"}]

    (failure,) = loads(edited(failures=failures)).failures

    assert failure == Failure(stage="stacks", reason="py-spy timed out after 5.0 s")


def test_a_newer_major_version_is_rejected() -> None:
    text = edited(version=[3, 1], dstack_version="4.5.6", nodes="elsewhere", taken_at=None)

    assert rejection(lambda: loads(text, name="a.json")) == (
        "a.json has format 3.1, written by dstack 4.5.6; this dstack reads format 2. Use a newer version of dstack."
    )


def test_an_unknown_value_of_a_newer_minor_version_suggests_an_upgrade() -> None:
    frames = [{"function": "f", "file": "f.py", "line": 1, "origin": "elsewhere"}]

    text = edited(version=[2, 9], dstack_version="0.7.0", frames=frames)

    assert rejection(lambda: loads(text, name="a.json")) == (
        "a.json is not a valid snapshot: Invalid enum value 'elsewhere' - at `$.frames[0].origin`. "
        "Use a newer version of dstack: 0.7.0 wrote the file."
    )


def test_an_older_major_version_is_rejected() -> None:
    assert rejection(lambda: loads(edited(version=[1, 6]))).endswith("Use the version of dstack that wrote it.")


def test_another_schema_is_rejected() -> None:
    text = b'{"schema": "dstack.check/2", "version": [1, 0]}'

    assert rejection(lambda: loads(text, name="a.json")) == (
        "a.json has the schema dstack.check/2, not dstack.snapshot. Give a file that dstack snapshot -o wrote."
    )


# Broken and hostile content


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "it is empty"),
        (b"\n", "is truncated (byte 1)"),
        (b"{", "is truncated (byte 1)"),
        (TEXT[:-1], f"is truncated (byte {len(TEXT) - 1})"),
        (TEXT + b"x", "trailing characters"),
        (b"\xef\xbb\xbf" + TEXT, "invalid character (byte 0)"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `schema`"),
        (edited(version="1.0"), "Expected `array`, got `str` - at `$.version`"),
        (edited(version=[1]), "`$.version`"),
        (edited(version=[10**4000, 0]), "`$.version[0]`"),
        (edited(dstack_version=1), "Expected `str`, got `int` - at `$.dstack_version`"),
        (edited(nodes=[{"node_id": "aa", "ip": 3}]), "Expected `str`, got `int` - at `$.nodes[0].ip`"),
        (edited(frames=[{"function": "f", "file": "f", "line": 1, "origin": "\x1b[2J" * 999}]), "origin`"),
        (edited(sources={"f": {"one": "x"}}), "Expected `int`, got `str` - at `key` in `$.sources[...]`"),
        (edited(total_s=float("nan")), "invalid character (byte "),
        (edited(total_s=float("inf")), "invalid character (byte "),
        (TEXT.replace(b'"total_s":0.0', b'"total_s":1e999'), "Number out of range - at `$.total_s`"),
        (edited(workers=[{"pid": 2**63}]), "`$.workers[0].pid`"),
        (edited(sources={"f": {"9" * 30: "x"}}), "at `key` in `$.sources[...]`"),
        (edited(stacks=[[int("9" * 4000)]]), "`$.stacks[0][0]`"),
        (edited(taken_at=1e300), "`$.taken_at`"),
        (edited(taken_at=-1), "`$.taken_at`"),
        (TEXT.replace(b"10.0.0.1:6379", b"10.0.0.1\xff:9"), f"not UTF-8 (byte {TEXT.index(b':6379')})"),
        (TEXT.replace(b"10.0.0.1:6379", b"\xed\xa0\x80"), "not UTF-8"),
        (TEXT.replace(b"10.0.0.1:6379", rb"\ud800\u0041 and more"), "surrogate pair"),
        (edited(more=[]).replace(b"[]", b"[" * 10**6), "nested too deeply"),
        (edited(more=[]).replace(b'"more": []', b'"more": ' + b'{"a":' * 10**6), "nested too deeply"),
        (edited(stacks=[[0, 1], [2]]), "no such frame - at `$.stacks[1][0]`"),
        (edited(stacks=[[0, -1]]), "Expected `int` >= 0 - at `$.stacks[0][1]`"),
        (edited(stacks=[[1]]), "`$.samples[0].workers[0].process.threads[0].call.frame`"),
        (edited(stacks=[[0, 1]]), "no such stack - at `$.samples[0].workers[0].process.threads[1].stack`"),
        (TEXT.replace(b'"frame":1', b'"frame":-1'), "threads[0].call.frame`"),
        (TEXT.replace(b'"ended_tasks":[]', b'"ended_tasks":[%s]' % ENDED, 1), ".process.ended_tasks[0].stack`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_content_is_reported_with_its_place(text: bytes, why: str) -> None:
    assert why in rejection(lambda: loads(text))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_file_is_rejected(tmp_path: Path, suffix: str) -> None:
    whole = written(tmp_path / f"whole{suffix}", TEXT).read_bytes()
    cut = tmp_path / f"cut{suffix}"

    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        assert str(cut) in rejection(lambda: load(cut))


def follow_indices(snapshot: Snapshot) -> None:
    """Follows every index as later code does."""
    for sample in snapshot.samples:
        for worker in sample.workers:
            for thread in worker.process.threads if worker.process else ():
                frames = snapshot.frames_of(thread)
                assert thread.call is None or frames[thread.call.frame] in snapshot.frames
    assert loads(dumps(snapshot)) == snapshot


def is_accepted(read: Callable[[], Snapshot]) -> bool:
    """Whether the content was accepted; other outcomes than a valid snapshot or a rejection fail the test."""
    try:
        follow_indices(read())
    except SnapshotFileError:
        return False
    return True


def test_changed_bytes_of_a_gzip_file_are_accepted_or_rejected(tmp_path: Path) -> None:
    chance = random.Random(1)
    whole = gzip.compress(TEXT)
    path = tmp_path / "changed.json.gz"
    accepted = 0

    for _ in range(1000):
        path.write_bytes(by_bytes(whole, chance))
        accepted += is_accepted(lambda: load(path))

    assert accepted < 1000


def test_a_gzip_bomb_is_rejected_in_little_memory(tmp_path: Path) -> None:
    # 8 GiB of spaces in as many members as it takes
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * 2**26) * 128)
    assert bomb.stat().st_size < 2**24

    tracemalloc.start()
    sentence = rejection(lambda: load(bomb))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert "has more than 256 MiB" in sentence
    assert peak_bytes < 1.5 * document_file.MAX_BYTES


def test_a_file_that_is_too_large_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "s.json", TEXT)

    monkeypatch.setattr(document_file, "MAX_BYTES", len(TEXT))
    assert load(path) == SNAPSHOT
    monkeypatch.setattr(document_file, "MAX_BYTES", len(TEXT) - 1)
    assert "the limit for a snapshot file" in rejection(lambda: load(path))


@pytest.mark.parametrize("is_child", [False, True])
def test_too_many_frames_are_rejected(is_child: bool) -> None:
    thread = {"name": "t", "stack": 0, "role": "user"}
    process: dict[str, Any] = {"pid": 1, "started_at": 1}
    process["threads"] = [thread | {"os_thread_id": number} for number in range(1_001)]
    if is_child:
        process = {"pid": 2, "started_at": 1, "children": [{**process, "parent_pid": 2}]}
    worker = {"worker_id": "cc", "process": process}
    text = edited(stacks=[[0] * 100_000], samples=[{"began_s": 0, "ended_s": 1, "workers": [worker]}])

    assert "has more than 100,000,000 frames" in rejection(lambda: loads(text))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (TEXT, "Not a gzipped file"),
        (b"", "it is empty"),
        (gzip.compress(TEXT)[:-12], "ended before"),
        (gzip.compress(TEXT)[:-8] + bytes(8), "CRC check failed"),
        (gzip.compress(TEXT) + b"more", "Not a gzipped file"),
        (gzip.compress(TEXT)[:10] + b"\xff" * 99, "invalid block type"),
    ],
)
def test_malformed_gzip_is_reported(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "s.json.gz"
    path.write_bytes(data)

    assert why in rejection(lambda: load(path))


def test_an_unreadable_file_is_reported_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "broken.json").symlink_to("/proc/self/mem")  # a file whose first byte cannot be read

    assert rejection(lambda: load(tmp_path / "no.json")) == f"{tmp_path}/no.json: no such file. Check the name."
    for name in ("dir.json", "dir"):  # a directory and a missing file are called that, whatever their name
        assert rejection(partial(load, tmp_path / name)).startswith(
            f"{tmp_path}/{name} is a directory. Give a file of "
        )
    assert rejection(lambda: load(tmp_path / "no")).startswith(f"{tmp_path}/no: no such file.")
    assert "not a regular file" in rejection(lambda: load(tmp_path / "fifo.json"))
    assert "symbolic link" in rejection(lambda: load(tmp_path / "loop.json"))
    assert "Input/output error" in rejection(lambda: load(tmp_path / "broken.json"))
    assert "File name too long" in rejection(lambda: load(tmp_path / ("n" * 300 + ".json")))


# Writing


@pytest.mark.parametrize("name", ["s", "s.txt", "s.gz", "s.json.zip"])
def test_another_suffix_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"Use a name that ends in \.json or \.json\.gz"):
        save(SNAPSHOT, tmp_path / name)
    (tmp_path / name).touch()
    with pytest.raises(UsageError):
        load(tmp_path / name)
    with pytest.raises(UsageError):
        require_writable(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_the_owner_can_read_a_saved_file(tmp_path: Path, suffix: str) -> None:
    umask = os.umask(0)
    try:
        save(SNAPSHOT, tmp_path / f"s{suffix}")
    finally:
        os.umask(umask)

    assert (tmp_path / f"s{suffix}").stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("mine")

    with pytest.raises(UsageError, match="Overwrite it with --force"):
        require_writable(path)
    with pytest.raises(UsageError, match="Overwrite it with --force"):
        save(SNAPSHOT, path)
    assert path.read_text() == "mine"

    require_writable(path, force=True)
    save(SNAPSHOT, path, force=True)
    assert load(path) == SNAPSHOT
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    monkeypatch.setattr(document_file, "to_json", lambda _: path.write_text("mine") and b"late")

    with pytest.raises(UsageError, match="already exists"):
        save(SNAPSHOT, path)

    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_dangling_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "s.json").symlink_to("elsewhere")

    with pytest.raises(UsageError, match="already exists"):
        save(SNAPSHOT, tmp_path / "s.json")


def test_a_snapshot_is_saved_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", reject)

    save(SNAPSHOT, tmp_path / "s.json")

    assert load(tmp_path / "s.json") == SNAPSHOT
    assert os.listdir(tmp_path) == ["s.json"]


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    # given a limit that ends the write midway, as a full disk does
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(TEXT) // 2, hard))
    try:
        with pytest.raises(SnapshotFileError, match="File too large"):
            save(SNAPSHOT, tmp_path / "s.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert os.listdir(tmp_path) == []


def test_an_unwritable_file_is_reported_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dir.json").mkdir()

    for path, why in {
        "no/s.json": "no: no such directory. Create it: mkdir -p ",
        "file/s.json": "file: no such directory",
        "dir.json": "dir.json is a directory",
    }.items():
        with pytest.raises(SnapshotFileError, match=why):
            save(SNAPSHOT, tmp_path / path, force=True)
    assert sorted(os.listdir(tmp_path)) == ["dir.json", "file"]


def test_a_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    require_writable("-")
    save(SNAPSHOT, "-")

    out, err = capfdbinary.readouterr()
    assert loads(out) == SNAPSHOT
    assert out.endswith(b"}\n")
    assert err == b""


def test_an_unwritable_standard_output_is_reported_with_its_reason() -> None:
    program = """if True:
        import os
        from dstack.errors import SnapshotFileError
        from dstack.model.snapshot import (Snapshot)
        from dstack.files.snapshot_file import save
        try:
            save(Snapshot(dstack_version="0", taken_at=0, address="", ray_version=""), "-")
        except SnapshotFileError as error:
            os.write(2, str(error).encode())
        os._exit(0)
    """
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=True)

    assert done.stderr == f"Cannot write to standard output: No space left on device. {CHECK_STDOUT}".encode()
