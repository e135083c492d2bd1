"""Where graphdoc keeps what it can fetch or make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/graphdoc``, or ``~/.cache/graphdoc`` where that is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graphdoc"
