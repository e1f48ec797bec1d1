"""Ray Data."""
