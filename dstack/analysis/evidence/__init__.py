"""What several samples and readings prove together: what changed, what polls, since when, and what was not read."""
