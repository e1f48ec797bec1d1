"""The version of dstack."""

__version__ = "0.1.0"
