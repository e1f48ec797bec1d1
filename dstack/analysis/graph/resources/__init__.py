"""Waits for resources: requests, their holders, and what ends the lifetime of a holder."""
