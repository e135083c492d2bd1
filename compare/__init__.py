"""Runners, taps, metrics, tolerances and the verdict."""
