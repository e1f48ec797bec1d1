"""The view of what calls what."""
