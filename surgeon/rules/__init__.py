"""Rewrite rules: one module per family, each with a tuple ``RULES`` of what it offers."""
