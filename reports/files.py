"""Writing a report: the file is there whole or not at all."""

import os
from pathlib import Path


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write UTF-8 text under a temporary name in the same folder, then rename it to ``path``.

    Raises OSError; nothing is left behind then, and an older file at ``path`` is as it was.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
