"""The output of `make compatibility` for a pair of versions that cannot run here."""

from __future__ import annotations

import pytest

from tests.paths import ROOT
from tests.versions import compatibility
from tests.versions.compatibility import FAILED, PAIRS, SMOKE, Pair, main, outcome
from tests.versions.debian_tree import TOOLS, DebianTree

IN_DEBIAN = next(pair for pair in PAIRS if pair.python in compatibility.FROM_DEBIAN)
NOT_HERE = f"there is no Python {IN_DEBIAN.python} on the PATH or under pyenv"


@pytest.fixture(autouse=True)
def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "find", lambda python: None)


def test_without_root_the_pair_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert (
        outcome(IN_DEBIAN, 1) == f"SKIPPED: {NOT_HERE}, and a Debian tree with it can only be made and entered by root"
    )


def test_without_mmdebstrap_the_pair_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "mmdebstrap" else f"/usr/bin/{tool}")

    assert outcome(IN_DEBIAN, 1) == f"SKIPPED: {NOT_HERE}, and this machine has no mmdebstrap"


def test_all_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None)

    assert DebianTree.missing() == f"this machine has no {' and no '.join(TOOLS)}"


def test_a_missing_required_python_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair("3.12", "2.60.0", ())
    monkeypatch.setattr(compatibility, "PAIRS", (pair,))
    monkeypatch.setattr("sys.argv", ["compatibility.py"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    assert f"\n{pair}: {FAILED}: there is no Python 3.12 on the PATH or under pyenv\n" in capsys.readouterr().out


@pytest.mark.parametrize("pair", [*PAIRS, *SMOKE], ids=str)
def test_the_tests_of_a_pair_exist(pair: Pair) -> None:
    assert [test for test in pair.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_a_skipped_pair_alone_does_not_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(compatibility, "PAIRS", (IN_DEBIAN,))
    monkeypatch.setattr("sys.argv", ["compatibility.py"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 0
    assert f"\n{IN_DEBIAN}: SKIPPED: " in capsys.readouterr().out
