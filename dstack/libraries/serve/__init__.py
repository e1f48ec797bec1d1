"""Ray Serve."""
