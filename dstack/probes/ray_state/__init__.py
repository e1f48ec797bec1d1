"""What Ray knows: the GCS's tables, the core workers' tasks and refs, and task events."""
