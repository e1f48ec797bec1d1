"""Serves the figures of a watch to Prometheus, through its official client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dstack.analysis.findings import verdict_of
from dstack.errors import UsageError
from dstack.model.diagnosis import FindingKind, Ratio
from dstack.watch.figures import Figures, spent_s

LOOPBACK = "127.0.0.1"
REPORTED_KINDS = [kind for kind in get_args(FindingKind) if verdict_of(kind) != "running"]


def serve(place: str, figures: Callable[[], Figures]) -> str:
    """Serves the current figures at ``[HOST:]PORT`` and returns the URL.

    By default only this host can connect; port 0 chooses a free port. Raises :class:`dstack.UsageError` if the address
    cannot be used.
    """
    host, _, port = place.rpartition(":")
    host = host.strip("[]") or LOOPBACK
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{place!r} is not a port.", "Use --metrics PORT or --metrics HOST:PORT.")
    registry = CollectorRegistry()
    registry.register(_Figures(figures))
    try:
        server, _ = start_http_server(int(port), host, registry)
    except OSError as error:
        raise UsageError(f"Cannot serve metrics at {host}:{port}: {error.strerror}.", "Use another port.") from error
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{server.server_port}/metrics"


class _Figures(Collector):
    """The metrics, which the client collects for each request."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        return families(self._figures())


def families(now: Figures) -> Iterator[Metric]:
    """The metrics of these figures."""
    yield GaugeMetricFamily("dstack_up", "1 if the cluster answered the last poll, else 0.", now.is_up)
    findings = {kind: now.findings.get(kind, 0) for kind in REPORTED_KINDS}
    yield _by_kind(GaugeMetricFamily("dstack_findings", "Current findings, by kind.", labels=["kind"]), findings)
    reported = CounterMetricFamily(
        "dstack_findings_reported", "Findings reported since the start, by kind.", labels=["kind"]
    )
    yield _by_kind(reported, {kind: now.found.get(kind, 0) for kind in REPORTED_KINDS})
    waits = GaugeMetricFamily(
        "dstack_waits",
        "Waits in the last snapshot, by kind; none while everything makes progress.",
        labels=["kind"],
    )
    yield _by_kind(waits, now.waits)
    yield GaugeMetricFamily(
        "dstack_oldest_wait_seconds",
        "Age of the oldest of these waits, at least.",
        now.oldest_wait_s,
        unit="seconds",
    )
    yield GaugeMetricFamily(
        "dstack_longest_unmoved_seconds",
        "Longest time that a call, driver or worker has made no progress.",
        now.longest_unmoved_s,
        unit="seconds",
    )
    yield from _of_all("dstack_poll_workers", "answering", "Workers and drivers in the last poll", now.answered)
    yield from _of_all(
        "dstack_snapshot_workers", "observed", "Workers and drivers in the last snapshot", now.workers_seen
    )
    yield from _of_all("dstack_snapshot_nodes", "observed", "Nodes in the last snapshot", now.nodes_seen)
    yield CounterMetricFamily("dstack_polls", "Polls of the counters, without stacks.", now.polls)
    yield CounterMetricFamily("dstack_snapshots", "Snapshots, with stacks.", now.snapshots)
    yield CounterMetricFamily(
        "dstack_cpu_seconds",
        "CPU time of dstack on this host, with its child processes.",
        spent_s(),
        unit="seconds",
    )


def _of_all(name: str, which: str, text: str, ratio: Ratio) -> Iterator[Metric]:
    """Two gauges: the total, and the part with a property."""
    yield GaugeMetricFamily(name, f"{text}.", ratio.total)
    yield GaugeMetricFamily(f"{name}_{which}", f"{text}, those {which}.", ratio.observed)


def _by_kind(family: Metric, counts: Mapping[str, int]) -> Metric:
    for kind, count in counts.items():
        family.add_metric([kind], count)  # type: ignore[attr-defined]  # only its kinds have it
    return family
