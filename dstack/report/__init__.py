"""A diagnosis as text for a person and as JSON for a script."""
