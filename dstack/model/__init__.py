"""What dstack knows: the snapshot, its diagnosis, recordings, and the keys and facts of graph vertices."""
