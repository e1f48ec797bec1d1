"""What runs on a Ray node, beside the processes it looks at.

This package travels to nodes by value, so nothing of dstack need be installed there: it imports the standard
library, psutil and Ray (which brings a psutil of its own), and nothing else of dstack. What goes in and out is
plain data in the shape of :mod:`dstack.model`.
"""
