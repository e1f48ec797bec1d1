"""The probe that runs on a Ray node, beside the processes that it reads.

This package travels to nodes by value, so nothing of dstack needs to be installed there: it imports the standard
library, psutil (which Ray brings), and of dstack only what travels with it: observed values, call sites, and how
libraries are read. :mod:`dstack.probes.node.wire` has what comes in and goes out.
"""
