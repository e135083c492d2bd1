"""Where arrays live: the host, or a card behind CuPy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from graphdoc.engine.device import cupy

NAMESPACES: dict[str, Callable[[], Any]] = {"cpu": lambda: np, "cuda": cupy.namespace}
"""Device → what returns its array namespace, or raises RunnerError."""
