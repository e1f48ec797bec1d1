"""What every test may ask for, and how random examples are chosen."""

import os

from hypothesis import settings

from tests.hosts.fixtures import hosts_possible, three_hosts

__all__ = ["hosts_possible", "three_hosts"]

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=5_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
