"""Seeded signals that look like what models are trained on: pictures, voices, features, words.

All take a NumPy generator and return float64 arrays (words: object arrays of ``str``).
"""

from collections.abc import Sequence
from math import pi, prod
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Random: TypeAlias = np.random.Generator

WORDS = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
    "quebec",
    "romeo",
    "sierra",
    "tango",
    "uniform",
    "victor",
    "whiskey",
    "xray",
    "yankee",
    "zulu",
]


def picture(rng: Random, height: int, width: int, channels: int) -> Array:
    """Return height × width × channels in 0..1: soft waves, some flat rectangles, a little noise."""
    y, x = np.mgrid[0:height, 0:width]
    result = np.empty((height, width, channels))
    for channel in range(channels):
        a, b, phase = rng.uniform(2, 9), rng.uniform(2, 9), rng.uniform(0, 2 * pi)
        wave = np.sin(x / max(width, 1) * a + phase) * np.cos(y / max(height, 1) * b)
        result[..., channel] = 0.5 + 0.3 * wave
    for _ in range(8):
        top, left = rng.integers(0, max(1, height - 2)), rng.integers(0, max(1, width - 2))
        tall, wide = rng.integers(1, max(2, height // 3)), rng.integers(1, max(2, width // 3))
        result[top : top + tall, left : left + wide] = rng.uniform(0, 1, channels)
    return np.clip(result + 0.02 * rng.standard_normal(result.shape), 0, 1)


def pictures(rng: Random, shape: Sequence[int], height: int, width: int, channel: int | None) -> Array:
    """Return a tensor of pictures; height, width and channel name its axes, all others count pictures."""
    inner = [axis for axis in (height, width, channel) if axis is not None]
    outer = [axis for axis in range(len(shape)) if axis not in inner]
    depth = 1 if channel is None else shape[channel]
    count = prod(shape[axis] for axis in outer)
    drawn = [picture(rng, shape[height], shape[width], depth) for _ in range(min(count, 64))]
    stack = np.stack([drawn[i % len(drawn)] for i in range(count)]) if count else np.empty(0)
    stack = stack.reshape([shape[axis] for axis in outer] + [shape[height], shape[width], depth])
    if channel is None:
        stack = stack[..., 0]
    return np.moveaxis(stack, range(len(shape)), outer + inner)


def voice(rng: Random, samples: int, rate: int = 16000) -> Array:
    """Return a voiced sound within ±1: harmonics with vibrato under a moving envelope, a little noise."""
    t = np.arange(samples) / rate
    phase = 2 * pi * rng.uniform(90, 220) * t + 2 * np.sin(2 * pi * 5 * t)
    tone = np.zeros(samples)
    for k in range(1, 9):
        tone += np.sin(k * phase + rng.uniform(0, 2 * pi)) / k
    envelope = 0.55 + 0.45 * np.sin(2 * pi * 3 * t)
    sound: Array = np.clip(0.1 * tone * envelope + 0.005 * rng.standard_normal(samples), -1, 1)
    return sound


def voices(rng: Random, shape: Sequence[int], axis: int, rate: int = 16000) -> Array:
    """Return a tensor with one sound along ``axis`` for each combination of the other axes."""
    others = [size for i, size in enumerate(shape) if i != axis]
    count = prod(others)
    sounds = [voice(rng, shape[axis], rate) for _ in range(min(count, 16))]
    stack = np.stack([sounds[i % len(sounds)] for i in range(count)]) if count else np.empty(0)
    return np.moveaxis(stack.reshape([*others, shape[axis]]), -1, axis)


def features(rng: Random, shape: Sequence[int]) -> Array:
    """Return normal values, mean 0 and spread 1."""
    return rng.standard_normal(tuple(shape))


def words(rng: Random, shape: Sequence[int], choices: Sequence[str] = WORDS) -> Array:
    """Return an object array of ``str`` drawn from the choices."""
    result = np.empty(prod(shape), dtype=object)
    result[:] = [choices[int(i)] for i in rng.integers(0, len(choices), len(result))]
    return result.reshape(tuple(shape))
