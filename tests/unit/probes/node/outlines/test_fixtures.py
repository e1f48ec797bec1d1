"""The steps of a test as a program's own code, after those of its fixtures."""

from pathlib import Path

from dstack.probes.node.outlines import TestOutlines

CONFTEST = """
import pytest, ray

@pytest.fixture(autouse=True)
def cluster():
    ray.get(warm_up.remote())
    yield
    ray.get(never_before_the_test.remote())

@pytest.fixture(name="till")
def make_till():
    return Till.remote()

@pytest.fixture
def unused():
    ray.get(unused_call.remote())
"""
TESTS = """
import pytest, ray

@ray.remote
class Till:
    def order(self): ...

@pytest.fixture
def order(till):
    ref = till.order.remote()
    yield ref

class TestTill:
    @pytest.fixture
    def opened(self, till):
        ray.get(till.open.remote())

    @pytest.mark.parametrize("kind", ["soup"])
    def test_order(self, opened, order, kind):
        @ray.remote
        def task(): ray.get(order.remote())
        ray.get(order)

def test_other():
    @ray.remote
    def task(): ...
"""


def own_steps(tmp_path: Path, name: str) -> list[tuple[str, str, tuple[int, ...]]]:
    outline = TestOutlines().of_test(written(tmp_path), name, "01000000")
    assert outline.why_partial == ""
    assert outline.functions[0].name == ""
    return [(step.kind, step.name, step.of) for step in outline.functions[0].steps]


def written(tmp_path: Path) -> str:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_till.py").write_text(TESTS)
    return str(tmp_path / "unit" / "test_till.py")


def test_fixtures_come_before_the_test_that_uses_them(tmp_path: Path) -> None:
    assert own_steps(tmp_path, "TestTill.test_order[soup]") == [
        ("call", "", ()),  # no name: warm_up is defined nowhere
        ("wait", "", (0,)),
        ("call", "", ()),
        ("call", "open", ()),
        ("wait", "", (3,)),
        ("call", "order", ()),
        ("wait", "", (5,)),
    ]


def test_a_test_without_fixtures_has_those_of_all_tests(tmp_path: Path) -> None:
    assert own_steps(tmp_path, "test_other") == [("call", "", ()), ("wait", "", (0,))]


def test_of_functions_of_one_name_that_within_the_test_counts(tmp_path: Path) -> None:
    path, tests = written(tmp_path), TestOutlines()
    outlines = [tests.of_test(path, name, "01000000") for name in ("TestTill.test_order", "test_other")]

    tasks = [next(one for one in outline.functions if one.name == "task") for outline in outlines]
    assert [len(one.steps) for one in tasks] == [2, 0]


def test_an_unknown_test_is_said_to_be_missing(tmp_path: Path) -> None:
    path = written(tmp_path)

    outline = TestOutlines().of_test(path, "test_gone", "01000000")

    assert outline.why_partial == f"the test test_gone was not found in {path}"


def test_slots_of_a_class_are_those_that_the_test_asks_for(tmp_path: Path) -> None:
    path, tests = written(tmp_path), TestOutlines()
    with open(path, "a") as file:
        file.write("def test_one(): Till.remote()\ndef test_two(): Till.options(max_concurrency=2).remote()\n")

    slots = [tests.of_test(path, name, "").classes[0].slots for name in ("test_one", "test_two", "test_other")]

    assert slots == [1, 2, None]
