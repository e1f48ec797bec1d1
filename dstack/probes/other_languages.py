"""Workers in Java and C++: their core workers answer as those in Python, but they have no Python stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dstack.model import Failure

UNREADABLE = ("stacks", "memory")
"""The stages of failures that follow from the language, unless the process has ended."""
TOOLS = {"Java": "jstack PID", "C++": "gdb -p PID -batch -ex 'thread apply all backtrace'"}
"""The commands that print the stacks of a process, PID."""


def with_languages(failures: Iterable[Failure], languages: Mapping[str, str]) -> Iterator[Failure]:
    """The failures, with one that names the language of a worker instead of those to read its Python stacks.

    ``languages`` are those of workers by id, other than Python.
    """
    explained = set()
    for failure in failures:
        language = languages.get(failure.worker_id or "")
        if language is None or failure.stage not in UNREADABLE or failure.cause == "ended":
            yield failure
        elif failure.worker_id not in explained:
            explained.add(failure.worker_id)
            yield _no_stack(failure, language)


def _no_stack(failure: Failure, language: str) -> Failure:
    return Failure(
        stage="stacks",
        reason=f"it runs {language}: its tasks and the refs that it holds were read, and no stack",
        remedy=f"See its stacks on its node: {TOOLS[language]}",
        node_id=failure.node_id,
        worker_id=failure.worker_id,
        pid=failure.pid,
        elapsed_s=failure.elapsed_s,
        sample=failure.sample,
    )
