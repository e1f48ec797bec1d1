"""Makes pages of saved snapshots in a child process, which can be killed, and whose memory is freed at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dstack.errors import DstackError, as_dstack_error
from dstack.processes.child import Child, Parent

if TYPE_CHECKING:
    from dstack.model.snapshot import Snapshot


TIMEOUT_S = 30.0
MAKE_IT_LATER = "The snapshot is saved. Make its page with: dstack report FILE -o FILE.html"
"""A page of a thousand workers takes a few seconds."""


class PageMaker:
    """Makes one page at a time, of at most ``timeout_s`` each; another thread can cancel it."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._child: Child | None = None
        self.is_cancelled = False

    def page_of(self, snapshot: Path, before: Sequence[Path] = (), job: str | None = None) -> bytes:
        """The page of a snapshot file; its past are the files of ``before`` that are readable and of the same cluster.

        Raises :class:`dstack.DstackError`.
        """
        deadline = time.monotonic() + self._timeout_s
        with self._lock:
            if self.is_cancelled:
                raise DstackError("The page was cancelled.")
            try:
                self._child = child = Child("dstack.report.page.page_maker", [*before, snapshot], job)
            except OSError as error:
                raise as_dstack_error(error) from error
        try:
            page: bytes = child.receive(deadline).value
        except TimeoutError:
            raise DstackError(f"The page was not made within {self._timeout_s:g} s.", MAKE_IT_LATER) from None
        except EOFError:
            raise DstackError("The process that makes the page ended.", MAKE_IT_LATER) from None
        finally:
            child.close()
        return page

    def cancel(self) -> None:
        """End a running :meth:`page_of` at once, and make later ones fail."""
        with self._lock:
            self.is_cancelled = True
            if self._child is not None:
                self._child.kill()


def main(parent: Parent, files: Sequence[Path], job: str | None) -> None:
    """Makes the page of the last one of these files, and sends it."""
    from dstack.processes.gc_pause import GcPause

    with GcPause():
        from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
        from dstack.files.snapshot_file import load
        from dstack.report.page.pages import report_page

        *before, file = files
        newest = load(file)
        past = [AnalysedSnapshot.of(one, job=job) for path in before if (one := _earlier(path, newest))]
        page = report_page(AnalysedSnapshot.of(newest, job=job), past)
    parent.send("page", page)


def _earlier(path: Path, newest: Snapshot) -> Snapshot | None:
    """An earlier snapshot, unless it is unreadable or of another cluster."""
    from dstack.analysis.views.snapshot_diff import require_same_cluster
    from dstack.files.snapshot_file import load

    try:
        earlier = load(path)
        require_same_cluster(earlier, newest)
    except DstackError:
        return None
    return earlier
