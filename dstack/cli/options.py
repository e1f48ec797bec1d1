"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

address_option = click.option(
    "--address", metavar="HOST:PORT|auto", help="Address of the GCS. [default: RAY_ADDRESS, or the cluster here]"
)


def seconds_option(*names: str, default: float, help: str) -> Callable[[Any], Any]:
    """An option that takes a number of seconds."""
    seconds = click.FloatRange(min=0, min_open=True)
    return click.option(*names, type=seconds, default=default, show_default=True, metavar="SECONDS", help=help)


timeout_option = seconds_option(
    "--timeout", "timeout_s", default=30.0, help="Overall time limit; partial results are kept."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the diagnosis as JSON (schema dstack.check/1)."
)
details_option = click.option("--details", is_flag=True, help="Print all members, stacks and failures too.")

pause_option = click.option(
    "--pause",
    is_flag=True,
    help="Pause running processes for exact stacks (py-spy); use Ray's agents for unreadable processes.",
)
native_option = click.option(
    "--native",
    is_flag=True,
    help="Include C and C++ frames, and stacks of Java and C++. Pauses each process for 0.1 s or more.",
)
for_option = click.option(
    "--for",
    "watch_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Observe the cluster for progress this long, beyond --timeout. [default: about 1 s, only if needed]",
)
job_option = click.option(
    "--job", metavar="ID", help="Show only the findings of one job: its id, submission id or script."
)
