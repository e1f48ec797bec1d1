"""The reading of a process in another language: its threads, their roles and calls, and what is missing."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from dstack.probes.node.other_languages import reader
from dstack.probes.node.other_languages.stacks import NativeThread, RayCall
from dstack.probes.node.other_languages.tools import CPP, JAVA, Language
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.reading import ProcessReading, Request
from dstack.probes.node.threads import Position

PID = 2**30
POSITIONS = (Position("Ray.java", "get", "io.ray.api.Ray.get", 83), Position("Main.java", "run", "Main.run", 3))
MAIN = NativeThread(PID + 1, "main", POSITIONS, is_main=True)


def request(*, native: bool = True, is_driver: bool = False) -> Request:
    options = {"native": native, "locals": False, "pause": native, "children": False, "deadline_s": 9.0}
    return Request(
        pid=PID,
        title="java",
        is_driver=is_driver,
        is_child=False,
        below=dict,
        thread_context=None,
        options={**options, "thread_context": None},  # type: ignore[typeddict-item]
        deadline=time.monotonic() + 9,
    )


def reading(
    monkeypatch: pytest.MonkeyPatch, *threads: NativeThread, language: Language = JAVA, is_driver: bool = False
) -> ProcessReading:
    monkeypatch.setattr(reader, "threads_of", lambda *_: [*threads])
    return reader.read_with_tool(language, request(is_driver=is_driver))


@pytest.mark.parametrize(("language", "tool"), [(JAVA, "jstack"), (CPP, "gdb")])
def test_without_native_only_the_language_is_named_with_the_option(language: Language, tool: str) -> None:
    with pytest.raises(DumpFailed) as caught:
        reader.read_with_tool(language, request(native=False))

    assert caught.value.reason == f"it runs {language.name}, whose stacks are read only with --native"
    assert caught.value.remedy == (
        f"Use dstack check --native: {tool} then reads them on its node, and pauses the process."
    )


def test_the_reading_names_the_tool_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reading(monkeypatch, MAIN)

    assert found.access == "jstack"
    assert [one.reason for one in found.problems] == [
        "it runs Java: its locks, and the refs of its calls, could not be read"
    ]
    assert not found.has_tasks


@pytest.mark.parametrize(
    ("thread", "is_driver", "role"),
    [
        (replace(MAIN, runs_task=True), False, "task"),
        (MAIN, False, "ray"),
        (MAIN, True, "user"),
        (NativeThread(PID, "driver", POSITIONS, is_service=True), True, "user"),
        (NativeThread(8, "Finalizer", POSITIONS, is_service=True), True, "ray"),
        (NativeThread(8, "pool-1", POSITIONS), False, "user"),
        (NativeThread(8, "pool-1", POSITIONS, runs_task=True), False, "task"),
    ],
)
def test_roles(monkeypatch: pytest.MonkeyPatch, thread: NativeThread, is_driver: bool, role: str) -> None:
    (found,) = reading(monkeypatch, thread, is_driver=is_driver).threads

    assert found.role == role


def test_the_main_thread_has_the_id_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    main, other = reading(monkeypatch, MAIN, NativeThread(8, "pool-1", POSITIONS)).threads

    assert (main.thread.os_thread_id, other.thread.os_thread_id) == (PID, 8)


def test_only_a_call_that_certainly_has_no_timeout_is_a_wait_for_held_refs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [RayCall("ray.get", 0, is_endless=True), RayCall("ray.get", 0, is_endless=False), None]

    found = reading(monkeypatch, *(replace(MAIN, call=call) for call in calls))

    assert [one.call for one in found.threads] == [
        {"kind": "ray.get", "frame": 0, "held": True, "timeout_s": None},
        {"kind": "ray.get", "frame": 0, "unread": "its timeout could not be read"},
        None,
    ]


def test_a_running_thread_is_in_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "threads", lambda _: [MAIN.os_thread_id])
    monkeypatch.setattr(proc, "thread_state", lambda *_: "R")

    (found,) = reading(monkeypatch, replace(MAIN, call=RayCall("ray.get", 0, is_endless=True))).threads

    assert (found.thread.is_running, found.call) == (True, None)
