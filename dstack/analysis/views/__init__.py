"""The data behind each view and each JSON document, computed on demand."""
