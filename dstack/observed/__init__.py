"""What probes observe of a cluster, as frozen dataclasses that travel with the probes; only the standard library."""
