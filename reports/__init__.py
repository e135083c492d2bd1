"""Comparison → HTML, Markdown, JSON, JUnit, terminal."""
