"""Ctrl-C while ONNX Runtime computes.

A run holds the main thread in native code, where Python handles no signals. The operating system's handler
writes to a socket (:func:`signal.set_wakeup_fd`), a thread waits there, and tells ONNX Runtime to stop.
"""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime as ort

_running: dict[int, ort.RunOptions] = {}
"""The options of the runs that are under way, by identity."""


@contextmanager
def stoppable() -> Iterator[ort.RunOptions]:
    """Yield options for one run; while an :func:`interruptible` block is open, Ctrl-C ends the run."""
    options = ort.RunOptions()
    options.log_severity_level = 4  # a run that fails says so in its exception; the log says it once more
    _running[id(options)] = options
    try:
        yield options
    finally:
        del _running[id(options)]


@contextmanager
def interruptible() -> Iterator[None]:
    """End runs on Ctrl-C. Does nothing off the main thread, or where others wait for signals already."""
    if threading.current_thread() is not threading.main_thread() or _taken():
        yield
        return
    waiting, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    watcher = threading.Thread(target=_watch, args=(waiting,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        waking.close()
        watcher.join()
        waiting.close()


def _taken() -> bool:
    """Whether somebody else, such as an event loop, has set the file that signals are written to."""
    previous = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(previous)
    return previous != -1


def _watch(waiting: socket.socket) -> None:
    while numbers := waiting.recv(64):
        if signal.SIGINT in numbers:
            for options in list(_running.values()):
                options.terminate = True
