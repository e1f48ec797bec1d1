"""Imports are one frame: importlib, the modules it executes, and functions that import lazily between them."""

from __future__ import annotations

import pytest

from dstack.analysis.index.shown_frames import fold_imports, innermost_shown, is_of_dstack, module_name, own_frames
from dstack.observed.processes import Frame, Origin

PACKAGES = "/venv/lib/python3.11/site-packages"


def frame(function: str, file: str, line: int = 1, origin: Origin = "library") -> Frame:
    return Frame(function=function, file=file, line=line, origin=origin)


def module(path: str, line: int = 1) -> Frame:
    return frame("<module>", f"{PACKAGES}/{path}", line)


def importing(by: str = "_bootstrap") -> tuple[Frame, ...]:
    """The frames of one import, leaf first."""
    names = ("_call_with_frames_removed", "exec_module", "_load_unlocked", "_find_and_load_unlocked", "_find_and_load")
    return tuple(frame(name, f"<frozen importlib.{by}>", 200, "stdlib") for name in names)


LINE = frame("<module>", "/srv/app/app.py", 3, "user")
SLOW = module("fastapi/slow/__init__.py", 7)
NESTED = (SLOW, *importing(), module("fastapi/routing.py", 12), *importing("_bootstrap_external"))
STACK = (*NESTED, module("fastapi/__init__.py", 5), *importing(), LINE)


def names(frames: tuple[Frame, ...], call: int | None = None) -> list[str]:
    return [one.frame.function for one in fold_imports(frames, call)]


def test_nested_imports_are_one_frame_with_the_name_and_the_line_of_the_innermost_module() -> None:
    imported, line = fold_imports(STACK)

    assert imported.frame == frame("imports fastapi.slow", SLOW.file, 7)
    assert (imported.first, imported.last, line.frame) == (0, len(STACK) - 2, LINE)


def test_what_the_innermost_module_calls_stays() -> None:
    calls = frame("create_model", f"{PACKAGES}/pydantic/main.py")

    assert names((calls, *STACK)) == ["create_model", "imports fastapi.slow", "<module>"]


def test_functions_that_import_lazily_are_within_the_import() -> None:
    lazy = (
        frame("import_module", "/usr/lib/python3.11/importlib/__init__.py", 126, "stdlib"),
        frame("_LazyModule._get_module", f"{PACKAGES}/transformers/utils/import_utils.py"),
        frame("_LazyModule.__getattr__", f"{PACKAGES}/transformers/utils/import_utils.py"),
    )

    stack = (module("transformers/models/bert.py"), *importing(), *lazy, *importing(), LINE)

    assert names(stack) == ["imports transformers.models.bert", "<module>"]


def test_an_import_ends_at_a_line_of_the_user() -> None:
    own = frame("<module>", "/srv/app/db.py", 5, "user")

    stack = (*NESTED, own, *importing(), LINE)

    assert names(stack) == ["imports fastapi.slow", "<module>", "imports db", "<module>"]
    assert [one.frame.function for one in own_frames(list(fold_imports(stack)))] == [
        "imports fastapi.slow",
        "<module>",
        "<module>",
    ]


def test_what_importlib_reads_is_named_by_the_module_that_imports_it() -> None:
    reads = frame("FileLoader.get_data", "<frozen importlib._bootstrap_external>", 1000, "stdlib")

    assert names((reads, *importing(), *STACK)) == ["imports fastapi.slow", "<module>"]
    assert names((reads, *importing(), LINE)) == ["imports a module", "<module>"]


def test_a_wait_for_the_import_of_another_thread_is_no_part_of_the_import() -> None:
    waits = frame("_ModuleLock.acquire", "<frozen importlib._bootstrap>", 120, "stdlib")

    assert names((waits, *STACK)) == ["_ModuleLock.acquire", "imports fastapi.slow", "<module>"]


def test_the_frame_of_a_call_and_those_inside_of_it_stay() -> None:
    waits = frame("wait", "/usr/lib/python3.11/threading.py", 320, "stdlib")

    assert names((waits, *STACK), call=1) == ["wait", "<module>", "imports fastapi.slow", "<module>"]


def test_a_module_that_no_import_executes_is_a_frame() -> None:
    script = module("ray/_private/workers/default_worker.py")

    assert names((*NESTED, script)) == ["imports fastapi.slow", "<module>"]
    assert names((script,)) == ["<module>"]


def test_without_code_of_the_user_the_import_stands_for_the_stack() -> None:
    shown = innermost_shown(STACK[:-1])

    assert shown is not None
    assert shown.function == "imports fastapi.slow"
    assert innermost_shown(STACK) == LINE


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (f"{PACKAGES}/fastapi/routing.py", "fastapi.routing"),
        (f"{PACKAGES}/fastapi/__init__.py", "fastapi"),
        ("/usr/lib/python3.11/json/decoder.py", "json.decoder"),
        ("/venv/lib/python3.11/site-packages/six.py", "six"),
        ("/tmp/packages.zip/shop/menu.py", "shop.menu"),
        ("<frozen abc>", "abc"),
        ("/srv/app/models/__init__.py", "models"),
        ("/srv/app/db.py", "db"),
        ("", ""),
    ],
)
def test_a_module_is_named_by_the_path_of_its_file(file: str, name: str) -> None:
    assert module_name(file) == name


def test_a_function_in_a_span_is_not_of_dstack() -> None:
    assert is_of_dstack(frame("Collector.take", f"{PACKAGES}/dstack/collecting/collector.py"))
    assert not is_of_dstack(frame("span.__call__.<locals>.in_span", f"{PACKAGES}/dstack/spans.py"))
