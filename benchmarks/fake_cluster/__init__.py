"""A made-up cluster of real gRPC servers, for `bench_scale`: a GCS, and the probes and core workers of all its nodes.

What they answer was recorded on real nodes (`record.py`): one with the driver, two with actors that wait for each
other, and a pair of others that stands for all further ones. Each copy of the pair has ids and addresses of its own.
"""
