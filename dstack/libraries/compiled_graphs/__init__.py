"""Compiled graphs (``ray.dag``)."""
