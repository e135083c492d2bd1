"""Kernel specifications: what a step may compute, stated over strided views and checked with NumPy."""
