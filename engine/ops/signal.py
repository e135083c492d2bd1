"""Signal processing: DFT, STFT, windows, mel weights.

Complex numbers are pairs along a last axis of size 2; real signals have a last axis of size 1. float16 and
bfloat16 are transformed in float32 and rounded once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.content import single_entry
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import constant_ints, with_dims
from graphdoc.engine.ops.table import Array, Call, TensorType, op

# ---- complex pairs -------------------------------------------------------------------------------------


def _signal(xp: Any, x: Array) -> Array:
    """Return x (…, 1) as real or (…, 2) as complex numbers without the last axis."""
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        raise ValueError(f"the last axis of {list(x.shape)} must hold a real number or a complex pair")
    if x.shape[-1] == 1:
        return x[..., 0]
    pairs = xp.ascontiguousarray(x)
    return pairs.view(np.result_type(x.dtype, np.complex64))[..., 0]


def _pairs(xp: Any, z: Array) -> Array:
    """Return complex z (…) as real pairs (…, 2), real z as (…, 1)."""
    if z.dtype.kind != "c":
        return z[..., None]
    return xp.ascontiguousarray(z).view(z.real.dtype).reshape(*z.shape, 2)


# ---- DFT -----------------------------------------------------------------------------------------------


def _transform(xp: Any, z: Array, length: int | None, axis: int, inverse: int, onesided: int) -> Array:
    """Return the transform of z along axis, complex, or real for the inverse of a one-sided spectrum."""
    if inverse and onesided:
        return xp.fft.irfft(z, length, axis)
    if inverse:
        return xp.fft.ifft(z, length, axis)
    if onesided and z.dtype.kind == "c":
        raise ValueError("a complex signal has no one-sided spectrum")
    return xp.fft.rfft(z, length, axis) if onesided else xp.fft.fft(z, length, axis)


def _dft(call: Call, x: Array, dft_length: Array | None, axis: int, inverse: int, onesided: int) -> Array:
    rank = x.ndim
    if not (-rank <= axis <= -2 or 0 <= axis <= rank - 2):
        raise ValueError(f"axis {axis} is out of range for rank {rank}; the last axis holds the complex pair")
    length = None if dft_length is None else int(dft_length.reshape(()))
    z = _signal(call.xp, wide(x))
    return narrow(_pairs(call.xp, _transform(call.xp, z, length, axis % rank, inverse, onesided)), x.dtype)


def _dft_type(
    x: TensorType, length: TensorType | None, axis: int | None, inverse: int, onesided: int
) -> TensorType:
    if x.shape is None:
        return TensorType(x.dtype)
    last = 1 if inverse and onesided else 2
    if length is None and not onesided:
        return TensorType(x.dtype, (*x.shape[:-1], last))
    if axis is None:
        return TensorType(x.dtype, (*(None,) * (len(x.shape) - 1), last))
    size = x.shape[axis] if length is None else single_entry(length)
    if onesided and not inverse:
        size = dims.add(dims.floor_divide(size, 2), 1)
    elif onesided and length is None:
        size = dims.multiply(2, dims.subtract(size, 1))
    return TensorType(x.dtype, with_dims(x.shape, {axis: size, -1: last}))


def infer_dft(
    call: Call,
    input: TensorType,
    dft_length: TensorType | None = None,
    axis: TensorType | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> TensorType:
    """dtype of the input; the transformed axis' size where it is known."""
    known = [-2] if axis is None else constant_ints(axis)
    return _dft_type(input, dft_length, known[0] if known else None, inverse, onesided)


def infer_dft_17(
    call: Call,
    input: TensorType,
    dft_length: TensorType | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> TensorType:
    """As infer_dft, with the axis in an attribute."""
    return _dft_type(input, dft_length, axis, inverse, onesided)


@op("DFT", 20, infer=infer_dft)
def dft(
    call: Call,
    input: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """Discrete Fourier transform along axis (default −2), input cut or zero-padded to dft_length.

    onesided keeps the first ⌊n/2⌋ + 1 bins of a real signal; with inverse it takes them and returns the
    real signal. Raises ValueError for the last axis and for a one-sided spectrum of complex numbers.
    """
    return _dft(call, input, dft_length, -2 if axis is None else int(axis.reshape(())), inverse, onesided)


@op("DFT", 17, infer=infer_dft_17)
def dft_17(
    call: Call,
    input: Array,
    dft_length: Array | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """As version 20, with the axis in an attribute."""
    return _dft(call, input, dft_length, axis, inverse, onesided)


# ---- STFT ----------------------------------------------------------------------------------------------


def infer_stft(
    call: Call,
    signal: TensorType,
    step: TensorType,
    window: TensorType | None = None,
    length: TensorType | None = None,
    *,
    onesided: int = 1,
) -> TensorType:
    """dtype of the signal; (batch, frames, bins, 2), frames and bins where the numbers are known."""
    shape, size = signal.shape, single_entry(length)
    if length is None and window is not None and window.shape:
        size = window.shape[0]
    samples = shape[1] if shape is not None else None
    frames = dims.add(dims.floor_divide(dims.subtract(samples, size), single_entry(step)), 1)
    bins = dims.add(dims.floor_divide(size, 2), 1) if onesided else size
    return TensorType(signal.dtype, (None if shape is None else shape[0], frames, bins, 2))


@op("STFT", 17, infer=infer_stft)
def stft(
    call: Call,
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    """Transforms of windowed frames: signal (B, L, 1 or 2) → (B, frames, bins, 2).

    frames = ⌊(L − n) / frame_step⌋ + 1, n from frame_length, else the window, else L. Raises ValueError
    when window and frame_length disagree, the frame is longer than the signal, or a complex signal is to
    give a one-sided spectrum.
    """
    xp, step = call.xp, int(frame_step.reshape(()))
    z = _signal(xp, wide(signal))
    size = _frame_size(z.shape[1], window, frame_length)
    if not 0 < size <= z.shape[1] or step < 1:
        raise ValueError(f"frames of {size} by steps of {step} do not fit a signal of {z.shape[1]}")
    frames = (z.shape[1] - size) // step + 1
    per_item, per_sample = z.strides
    strides = (per_item, step * per_sample, per_sample)
    framed = xp.lib.stride_tricks.as_strided(z, (z.shape[0], frames, size), strides)
    if window is not None:
        framed = framed * wide(window).astype(wide(signal).dtype, copy=False)
    return narrow(_pairs(xp, _transform(xp, framed, None, 2, 0, onesided)), signal.dtype)


def _frame_size(samples: int, window: Array | None, frame_length: Array | None) -> int:
    given = None if frame_length is None else int(frame_length.reshape(()))
    if window is None:
        return samples if given is None else given
    if given not in (None, window.shape[0]):
        raise ValueError(f"frame_length {given} differs from the window's length {window.shape[0]}")
    return int(window.shape[0])


# ---- windows and mel weights ---------------------------------------------------------------------------


def _dtype(call: Call, number: int) -> np.dtype[Any]:
    """Return the dtype of a TensorProto.DataType number, promoted in truth mode."""
    return call.real(ir.DataType(number).numpy())


def _cosines(call: Call, size: Array, periodic: int, output_datatype: int, terms: Sequence[float]) -> Array:
    """Return Σ terms[k] · cos(2πkn / N) for n = 0 … size − 1, N = size when periodic, else size − 1."""
    count = int(size.reshape(()))
    steps = np.arange(count) * (2 * np.pi) / np.float64(count if periodic else count - 1)
    window = sum(term * np.cos(k * steps) for k, term in enumerate(terms))
    return call.xp.asarray(np.asarray(window, np.float64).astype(_dtype(call, output_datatype)))


def infer_window(call: Call, size: TensorType, *, output_datatype: int = 1, **_: Any) -> TensorType:
    """The output datatype; (size,) when it is constant."""
    return TensorType(_dtype(call, output_datatype), (single_entry(size),))


@op("HannWindow", 17, infer=infer_window)
def hann_window(call: Call, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """sin²(πn / N), shape (size,)."""
    return _cosines(call, size, periodic, output_datatype, (0.5, -0.5))


@op("HammingWindow", 17, infer=infer_window)
def hamming_window(call: Call, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """25/46 − 21/46 · cos(2πn / N), shape (size,)."""
    return _cosines(call, size, periodic, output_datatype, (25 / 46, -21 / 46))


@op("BlackmanWindow", 17, infer=infer_window)
def blackman_window(call: Call, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """0.42 − 0.5 · cos(2πn / N) + 0.08 · cos(4πn / N), shape (size,)."""
    return _cosines(call, size, periodic, output_datatype, (0.42, -0.5, 0.08))


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def infer_mel(
    call: Call, bins: TensorType, length: TensorType, *rest: TensorType, output_datatype: int = 1
) -> TensorType:
    """(⌊dft_length/2⌋ + 1, num_mel_bins) where they are known."""
    size = dims.add(dims.floor_divide(single_entry(length), 2), 1)
    return TensorType(call.real(ir.DataType(output_datatype).numpy()), (size, single_entry(bins)))


@op("MelWeightMatrix", 17, infer=infer_mel)
def mel_weight_matrix(
    call: Call,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Array:
    """Triangular filters with peak 1, evenly spaced on the mel scale: (⌊dft_length/2⌋ + 1, num_mel_bins).

    Filter i rises from edge i to edge i + 1 and falls to edge i + 2; edges are whole frequency bins.
    """
    bins, length = int(num_mel_bins.reshape(())), int(dft_length.reshape(()))
    low, high = _mel(float(lower_edge_hertz.reshape(()))), _mel(float(upper_edge_hertz.reshape(())))
    mels = low + np.arange(bins + 2) * (high - low) / (bins + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = np.floor((length + 1) * hertz / int(sample_rate.reshape(()))).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bins))
    for number in range(bins):
        _triangle(weights[:, number], *edges[number : number + 3])
    return call.xp.asarray(weights.astype(_dtype(call, output_datatype)))


def _triangle(column: Any, left: int, centre: int, right: int) -> None:
    """Write one filter into a column of zeros."""
    if centre == left:
        column[centre] = 1
    else:
        column[left : centre + 1] = np.arange(centre - left + 1) / (centre - left)
    if right > centre:
        column[centre:right] = np.arange(right - centre, 0, -1) / (right - centre)
