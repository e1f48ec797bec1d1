"""ray.util.collective."""
