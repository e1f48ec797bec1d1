"""The texts in the locals of a function that calls ``ray.get_actor``, in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dstack.probes.node.named_values import texts_at_get_actor
from tests.unit.support.hostile_memory import Recorder
from tests.unit.support.own_process import own_process


class Waiting:
    """Waits in a function with a name and other locals; one without ``get_actor`` is called by it."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.begun = threading.Event()

    def get_actor(self) -> None:
        """Wait."""
        self.begun.set()
        with self.gate:
            pass

    def polls(self, name: str) -> None:
        """Ask for a name that is in a local."""
        token, long, number = "password", "x" * 61, 3
        self.get_actor()
        del token, long, number

    def waits(self, name: str) -> None:
        """Wait with a local of the same name, in another call."""
        self.begun.set()
        with self.gate:
            pass


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    specimen = Waiting()
    with specimen.gate:
        yield specimen


def texts_of(specimen: Waiting, function: Callable[[str], None]) -> dict[str, str]:
    thread = threading.Thread(target=function, args=("registry",), daemon=True)
    thread.start()
    assert specimen.begun.wait(10)
    recorder = Recorder()
    process = own_process(recorder)
    own = next(one for one in process.threads if one.thread_id == thread.ident)
    try:
        return texts_at_get_actor(process.objects, own.frames)
    finally:
        recorder.close()


def test_names_are_read_and_secrets_and_long_texts_are_not(waiting: Waiting) -> None:
    assert texts_of(waiting, waiting.polls) == {"name": "registry"}


def test_nothing_is_read_of_other_functions(waiting: Waiting) -> None:
    assert texts_of(waiting, waiting.waits) == {}
