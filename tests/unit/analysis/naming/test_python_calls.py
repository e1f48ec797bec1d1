import pytest

from dstack.analysis.naming.python_calls import ended_by, may_be_idle


@pytest.mark.parametrize(
    ("call", "waker", "is_idle"),
    [
        ("threading.Event.wait", "a call of Event.set", True),
        ("queue.Queue.get", "an item in the queue", True),
        ("multiprocessing.Queue.put of pool", "room in the queue", True),
        ("queue.Queue.put", "room in the queue", False),
        ("threading.Lock.acquire", None, False),
        ("thread.join", None, False),
        ("select.select", None, True),
    ],
)
def test_a_call_is_known_by_the_end_of_its_name(call: str, waker: str | None, is_idle: bool) -> None:
    assert (ended_by(call), may_be_idle(call)) == (waker, is_idle)
