"""Requests to the core workers of one node by gRPC, and their replies as observed values."""
