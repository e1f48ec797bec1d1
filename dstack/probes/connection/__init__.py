"""Finding a cluster and talking to it: addresses, credentials, gRPC, and clusters on this machine."""
