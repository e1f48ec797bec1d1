"""What Ray keeps in the memory of its workers: ObjectRefs, tasks on threads, concurrency groups."""
