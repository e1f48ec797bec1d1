"""What every test may ask for."""

from tests.hosts.fixtures import hosts_possible, three_hosts

__all__ = ["hosts_possible", "three_hosts"]
