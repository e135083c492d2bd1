"""Writing a file: it is there whole or not at all."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write UTF-8 text; see :func:`whole_file`."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file under a temporary name in the same folder; at the end it is renamed to ``path``.

    A link stays a link: the file it points to is written. A device or a named pipe is written as it is. A
    file that is replaced hands on its permissions.

    Raises OSError with ``path`` as its filename; nothing is left behind then, an older file is as it was.
    """
    try:
        if _is_special(Path(path)):
            with Path(path).open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        part = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
        try:
            with part.open("xb") as file:
                yield file
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None
        raise


def _is_special(path: Path) -> bool:
    """Whether a path is neither a file nor a folder, such as /dev/null."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
