"""The operators, one family a module; :mod:`graphdoc.engine.ops.table` explains how one is written."""
