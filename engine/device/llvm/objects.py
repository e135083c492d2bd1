"""Machine code on disk, by content: what was compiled once is loaded from then on.

Each file is one object in the user's cache, under a name that follows from all that the code depends on. Code
from here is run, so the folder belongs to the user alone and every file carries a checksum: that of
:meth:`ObjectCache.put`, or one of the format of what :meth:`ObjectCache.write` was given. Files appear
under their final name only when they are whole, so a process killed at any moment leaves nothing that another
would take. Where the folder cannot be used nothing is kept, and all else works.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphdoc.engine.cache import cache_folder

LIMIT = 256 << 20
"""Bytes that may lie in the cache; past it the files not used for longest go."""

_MAGIC = b"gdobj\x01\r\n"
_HEAD = len(_MAGIC) + 32
_DAY = 86_400.0


class ObjectCache:
    """Objects under ``folder``, made at first need with access for its owner alone; None: keep nothing.

    limit: bytes that may lie there. suffix: how the files' names end.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT, suffix: str = ".o") -> None:
        self._folder = folder
        self._limit = limit
        self._suffix = suffix
        self._stored = 0
        self._swept = False

    def get(self, key: str) -> bytes | None:
        """Return the object stored under a key by :meth:`put`, None where there is none that is whole."""
        path = self.path(key)
        try:
            content = b"" if path is None else path.read_bytes()
        except OSError:
            return None
        body = content[_HEAD:]
        if content[:_HEAD] != _MAGIC + hashlib.sha256(body).digest():
            self.drop(key)
            return None
        return body

    def put(self, key: str, body: bytes) -> None:
        """Store an object; where that fails, nothing is stored."""
        self.write(key, [_MAGIC + hashlib.sha256(body).digest(), body])

    def path(self, key: str) -> Path | None:
        """Return the file of a key, None where there is none; it counts as used."""
        folder = self._usable()
        path = None if folder is None else folder / (key + self._suffix)
        if path is None or not path.is_file():
            return None
        self._touch(path)
        return path

    def holds(self, prefix: str) -> bool:
        """Whether there is a file whose key starts so."""
        folder = self._usable()
        return folder is not None and any(name.startswith(prefix) for name in _listed(folder))

    def drop(self, key: str) -> None:
        """Delete the file of a key, if there is one."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / (key + self._suffix)).unlink()

    def write(self, key: str, parts: Iterable[Any]) -> None:
        """Store a file of these runs of bytes; where that fails, nothing is stored."""
        folder = self._usable()
        if folder is None:
            return
        with suppress(OSError):
            handle, name = tempfile.mkstemp(prefix=".new-", dir=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines(parts)
                    self._stored += file.tell()
                os.replace(name, folder / (key + self._suffix))  # noqa: PTH105 (names, not paths: this is quick)
            except OSError:
                os.unlink(name)  # noqa: PTH108
                raise
            self._sweep(folder)

    def _usable(self) -> Path | None:
        """Return the folder if it is the user's own and closed to others, made if need be."""
        folder = self._folder
        if folder is None:
            return None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = folder.stat()
        except OSError:
            return None
        foreign = hasattr(os, "getuid") and (state.st_uid != os.getuid() or state.st_mode & 0o022)
        return None if foreign else folder

    @staticmethod
    def _touch(path: Path) -> None:
        """Note that a file was used, once a day."""
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _DAY:
                os.utime(path)

    def _sweep(self, folder: Path) -> None:
        """Keep the folder within its limit: at the first store, and after each eighth of the limit."""
        if self._swept and self._stored < self._limit // 8:
            return
        self._swept, self._stored = True, 0
        now = time.time()
        files = []
        for path in folder.iterdir():
            state = path.stat()
            if path.suffix == self._suffix:
                files.append((state.st_mtime, state.st_size, path))
            elif now - state.st_mtime > _DAY:
                path.unlink()  # left by a process that was killed
        _drop_oldest(files, self._limit)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (names are all that is needed)
    except OSError:
        return []


def _drop_oldest(files: list[tuple[float, int, Path]], limit: int) -> None:
    """Delete the files used longest ago until three quarters of the limit are left."""
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return
    for _, size, path in sorted(files):
        if total <= limit * 3 // 4:
            return
        path.unlink(missing_ok=True)
        total -= size


def user_cache() -> ObjectCache:
    """Return the cache of this user; one that keeps nothing where the user has no home."""
    try:
        return ObjectCache(cache_folder() / "objects")
    except RuntimeError:
        return ObjectCache()
