"""In which call each thread is blocked, and on what it depends there."""
