"""The probe that runs on a Ray node, beside the processes that it reads.

This package travels to nodes by value, so nothing of dstack needs to be installed there: it imports the standard
library, psutil (which Ray brings), and nothing else of dstack. Its input and output are the plain data of
:mod:`dstack.probes.node.wire`.
"""
