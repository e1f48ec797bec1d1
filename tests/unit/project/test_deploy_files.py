"""The files in docs/deploy: what they query exists, and Kubernetes, Prometheus and Docker would take them."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.check_json import check_json
from dstack.watch.figures import Figures
from dstack.watch.metrics import REPORTED_KINDS, families
from tests.examples.recorded import recorded
from tests.paths import ROOT

DEPLOY = ROOT / "docs" / "deploy"
EXPORTED = {
    sample.name: set(sample.labels) for family in families(Figures(waits={"ray.get": 1})) for sample in family.samples
}
"""The labels of each metric that a watch exports."""
SCRAPED = {"instance", "job"}
"""The labels that Prometheus adds."""
RULES = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def selectors(query: str) -> Iterator[promql_parser.VectorSelector]:
    """The selectors of metrics in a query; variables of Grafana are replaced."""
    expression = promql_parser.parse(query.replace("$__rate_interval", "5m").replace("$instance", ".*"))
    pending = [expression]
    while pending:
        one = pending.pop()
        if isinstance(one, promql_parser.VectorSelector):
            yield one
        children = (getattr(one, name, None) for name in ("expr", "lhs", "rhs", "vector_selector"))
        pending += [child for child in (*children, *getattr(one, "args", ())) if isinstance(child, promql_parser.Expr)]


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_a_query_uses_metrics_and_labels_that_a_watch_exports(query: str) -> None:
    found = list(selectors(query))

    assert found
    for one in found:
        assert one.name in EXPORTED
        assert {matcher.name for matcher in one.matchers.matchers} <= EXPORTED[one.name] | SCRAPED


def test_an_unknown_metric_is_noticed() -> None:
    (one,) = selectors("sum(rate(dstack_no_metric[5m])) > 1")

    assert one.name not in EXPORTED


def test_every_kind_of_finding_has_an_alert() -> None:
    alerted = {
        kind
        for rule in RULES
        for kind in re.findall(r"[a-z]+", "".join(re.findall('kind=~?"(.*?)"', rule["expr"])).replace("|", " "))
    }

    assert alerted == {*REPORTED_KINDS}


def test_every_alert_says_what_it_means() -> None:
    for rule in RULES:
        assert rule.keys() >= {"alert", "expr", "labels", "annotations"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_dashboard_shows_every_metric_in_panels_that_do_not_overlap() -> None:
    assert {one.name for query in QUERIES for one in selectors(query)} == EXPORTED.keys()
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [(x, y) for panel in PANELS for x, y in _cells(panel["gridPos"])]
    assert len(cells) == len({*cells})
    assert all(0 <= x < 24 for x, _ in cells)


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_kubernetes_would_take_the_manifests_of_a_watch() -> None:
    found = documents("watch-deployment.yaml")

    assert [one["kind"] for one in found] == ["ConfigMap", "Deployment", "Service"]
    for one in found:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("group", ["head", "workers"])
def test_kubernetes_would_take_the_pods_of_the_ray_cluster(group: str) -> None:
    (cluster,) = documents("raycluster.yaml")
    spec = cluster["spec"]
    template = (spec["headGroupSpec"] if group == "head" else spec["workerGroupSpecs"][0])["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": group}, **template}

    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)

    assert template["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]


def test_kubernetes_would_take_the_debug_container() -> None:
    (profile,) = documents("debug-container.yaml")
    container = {"name": "debugger", "image": "dstack:3.11", "targetContainerName": "ray-head", **profile}
    ray = {"name": "ray-head", "image": "rayproject/ray:2.60.0-py311"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "head"},
        "spec": {"containers": [ray], "ephemeralContainers": [container]},
    }

    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_a_wrong_manifest_is_noticed() -> None:
    (_, deployment, _) = documents("watch-deployment.yaml")
    deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "metrics"

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)


def test_the_linter_of_dockerfiles_has_no_objections() -> None:
    linter = Path(sys.executable).with_name("hadolint")

    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "")


# The examples of --on-finding


@pytest.fixture(scope="module")
def finding() -> dict[str, Any]:
    """A finding as `dstack watch` passes it to its command."""
    document = json.loads(check_json(AnalysedSnapshot.of(load(recorded("two_actors")))))["findings"][0]
    return {**document, "address": "10.0.0.1:6379", "taken_at": 1.7e9, "file": "s/dstack-1.json.gz", "page": None}


@pytest.fixture
def service() -> Iterator[tuple[str, list[Any]]]:
    """The URL of a web service, and the documents that were posted to it."""
    posted: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", posted
        server.shutdown()
        thread.join()


def notify(script: str, finding: dict[str, Any], **environment: str) -> None:
    subprocess.run(
        [sys.executable, DEPLOY / script],
        input=json.dumps(finding),
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=True,
    )


def test_slack_gets_the_finding_with_its_fix_and_nothing_to_interpret(
    finding: dict[str, Any], service: tuple[str, list[Any]]
) -> None:
    url, posted = service

    notify("slack.py", {**finding, "summary": "<!channel> & more"}, SLACK_WEBHOOK=url)

    ((text,),) = (document.values() for document in posted)
    assert text.startswith("deadlock: &lt;!channel&gt; &amp; more\nFix: Raise max_concurrency of Cashier")
    assert text.endswith("Snapshot: dstack show s/dstack-1.json.gz")


def test_pagerduty_gets_one_incident_for_a_finding_that_is_reported_twice(
    finding: dict[str, Any], service: tuple[str, list[Any]]
) -> None:
    url, posted = service

    for taken_at in (1.7e9, 1.8e9):
        notify("pagerduty.py", {**finding, "taken_at": taken_at}, PAGERDUTY_URL=url, PAGERDUTY_KEY="key")
    notify("pagerduty.py", {**finding, "kind": "stalled"}, PAGERDUTY_URL=url, PAGERDUTY_KEY="key")

    first, second, third = posted
    assert first["dedup_key"] == second["dedup_key"] != third["dedup_key"]
    assert first["payload"]["severity"] == "critical"
    assert third["payload"]["severity"] == "warning"
    assert first["payload"]["summary"] == "deadlock: Cashier.order and Kitchen.cook wait for each other"
