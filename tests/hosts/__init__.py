"""Separate hosts for Ray on one machine."""

from tests.hosts.hosts import Hosts

__all__ = ["Hosts"]
