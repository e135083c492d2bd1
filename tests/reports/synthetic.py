"""Made-up comparisons for the tests of the reports: any size, every kind of outcome, hostile names.

The figures look like those of a real run (errors grow with depth, limits follow the noise) but mean
nothing; everything follows from the arguments.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from graphdoc.compare.picture import HeatMap, Histogram, Magnitudes, Picture, Reach
from graphdoc.compare.result import (
    Comparison,
    InputInfo,
    Kind,
    Latency,
    Layer,
    Limit,
    Metrics,
    Side,
    Skip,
    Status,
    Verdict,
)

OPERATORS = ("Conv", "BatchNormalization", "Relu", "Conv", "Mul", "Add", "Clip", "Div", "MatMul", "Softmax")

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"quoted\" 'single' &amp; {{ page }} {% raw %}",
    "name\nwith\r\nbreaks\tand tabs",
    "\u202egnp.exe\u202c right to left",
    "שלום/عالم",
    "nul\x00 escape \x1b[31m bell \x07",
    "`back`tick``s | pipe | @everyone #1 [x](javascript:alert(1)) *b* _i_ ~s~",
    "]]> <!-- comment --> <![CDATA[",
    "層/注意/頭.0",
    '=HYPERLINK("http://evil.example")',
    "a\u200bb zero width",
    "\ud800 lone surrogate \ufffe",
    "x" * 10_000,
    "",
    "-rf $(reboot) ; `id`",
)

Edit = Callable[[list[Layer]], tuple[list[Layer], Verdict]]


def comparison(
    outcome: str = "differs", layers: int = 20, *, hostile: bool = False, seed: int = 0
) -> Comparison:
    """Return a comparison of ``layers`` layers that came out as ``outcome`` (a key of OUTCOMES)."""
    rng = random.Random(seed)  # noqa: S311 - figures for pictures
    made = [] if outcome == "nothing" else [_layer(rng, n, layers) for n in range(layers)]
    if hostile:
        made = [
            replace(x, node=HOSTILE[x.index % len(HOSTILE)], value=HOSTILE[(x.index + 3) % 16]) for x in made
        ]
    made, verdict = OUTCOMES[outcome](made)
    return Comparison(
        verdict=verdict,
        layers=tuple(made),
        a=_side("A", rng, "encoder.onnx", hostile),
        b=_side("B", rng, "encoder.w16.onnx", hostile),
        inputs=tuple(_inputs(hostile)),
        skipped=tuple(_skipped(layers, hostile)) if outcome != "agrees" else (),
        command="graphdoc compare encoder.onnx encoder.w16.onnx --test engine --seed 0",
        environment={"cpu": "x86-64, 2 cores, AVX-512", "versions": "graphdoc 0.1.0, onnx 1.20.0"},
        remarks=("the outputs of A change by 1.7e-4 when its layers are tapped",) if layers > 20 else (),
    )


def _layer(rng: random.Random, index: int, layers: int) -> Layer:
    op = OPERATORS[index % len(OPERATORS)]
    error = 1e-4 * (1 + 20 * index / layers) * rng.uniform(0.4, 1.6)
    own = 0.0 if op in ("Relu", "Div") else error * rng.uniform(0.05, 0.3)
    limit = error * rng.uniform(2, 8)
    name = f"/encoder/layers.{index // 10}/block.{index // 3}/{op}"
    shape = (1, 8 * (1 + index % 4), 60, 80)
    return Layer(
        index=index,
        value=f"{name}_output_0",
        node=name,
        op=op,
        dtype="float32",
        shape=shape,
        is_output=index == layers - 1,
        error=error,
        limit=Limit(value=limit, reason=f"4 × the noise of {limit / 4:.1e} measured in 3 runs"),
        own_error=own,
        own_limit=Limit(value=limit / 3, reason="float32 rounding of sums of 576 products"),
        inherited_error=error * 0.9,
        metrics=_metrics(rng, error, shape),
        truth_a=error / 900,
        truth_b=own or error / 1000,
        time_a=rng.uniform(1e-5, 3e-4) * (12 if op == "Conv" else 1),
        time_b=rng.uniform(1e-5, 3e-4) * (11 if op == "Conv" else 1),
        inputs=_feeds(index),
        picture=_picture() if index % 600 == 17 else None,
    )


def _picture() -> Picture:
    counts = tuple(int(4000 / (1 + (k - 24) ** 2)) for k in range(48))
    rows = tuple("".join(".azmv!"[(r * c + c) % 6] for c in range(40)) for r in range(30))
    return Picture(
        histogram=Histogram(low=-3.5, high=4.25, counted=65_536, masked=3, a=counts, b=counts[::-1]),
        magnitudes=Magnitudes(low=-20, a=(1, 0, 4, 60, 900), b=(0, 0, 5, 61, 899)),
        reach_a=Reach(dtype="float32", near_overflow=0.0, near_underflow=1e-4, subnormal=0.25),
        reach_b=Reach(dtype="float16", near_overflow=0.01, near_underflow=0.0, subnormal=0.0),
        heat=HeatMap(axes=(2, 3), shape=(60, 80), largest=2.9, cells=rows),
    )


def _feeds(index: int) -> tuple[int, ...]:
    if index == 0:
        return ()
    return (index - 1, index - 4) if index % 10 == 5 else (index - 1,)


def _metrics(rng: random.Random, error: float, shape: tuple[int, ...]) -> Metrics:
    size = shape[0] * shape[1] * shape[2] * shape[3]
    return Metrics(
        size=size,
        outside=error / 10,
        max_abs=error * 9,
        mean_abs=error * 0.7,
        rms=error,
        max_rel=error * 4000,
        error=error,
        cosine=1 - error**2,
        snr_db=71.5,
        ulp=rng.randrange(1, 10**7),
        worst=(0, 4, 17, 23),
        a_worst=1.25,
        b_worst=1.25 + error * 9,
        a_min=-3.5,
        a_max=4.25,
        b_min=-3.5,
        b_max=4.25,
        rms_a=1.0,
        rms_b=1.0,
        zero_a=12,
        zero_b=11,
    )


def _side(label: str, rng: random.Random, model: str, hostile: bool) -> Side:
    median = 0.030 if label == "A" else 0.0306
    return Side(
        label=label,
        model=HOSTILE[0] if hostile else model,
        size=4_750_000 if label == "A" else 2_400_000,
        sha256=f"{rng.getrandbits(256):064x}",
        runner="ort" if label == "A" else "engine",
        version="1.20.0" if label == "A" else "0.1.0",
        settings=HOSTILE[2] if hostile else "1 thread, optimisations off for taps",
        latency=Latency(median=median, low=median * 0.97, high=median * 1.2, runs=60),
        tap_gap=1.7e-4 if label == "A" else None,
        fallbacks=("NonMaxSuppression",) if label == "B" else (),
    )


def _inputs(hostile: bool) -> Iterator[InputInfo]:
    yield InputInfo(
        name=HOSTILE[0] if hostile else "x",
        dtype="float32",
        shape=(1, 3, 320, 480),
        sha256="1f047edf16847838" * 4,
        source=HOSTILE[3] if hostile else "seed 0: smooth image in 0..1",
    )


def _skipped(layers: int, hostile: bool) -> Iterator[Skip]:
    for n in range(min(5, layers // 4)):
        yield Skip(value=HOSTILE[n] if hostile else f"shape_{n}", reason="B folds it into a constant")
    yield Skip(value="mask", reason="A has no value of this name")


# Outcomes


def _verdict(kind: Kind, code: int, symbol: str, word: str, sentence: str, **more: Any) -> Verdict:
    return Verdict(kind=kind, exit_code=code, symbol=symbol, word=word, sentence=sentence, **more)


def _agrees(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    count = len(layers)
    facts = (
        ("output", f"{layers[-1].value}    error 0.0021, limit 0.022"),
        ("compared", "A ort 1.20.0  against  B engine 0.1.0, 1 input, seed 0"),
    )
    sentence = f"{count} of {count} layers agree within float32 rounding"
    return layers, _verdict(Kind.AGREES, 0, "✓", "agrees", sentence, facts=facts)


def _differs(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    first = max(0, int(len(layers) * 0.9) - 1)
    for n in range(first, len(layers)):
        status = Status.OWN if n == first else Status.INHERITED
        layers[n] = replace(
            layers[n], status=status, error=0.81, inherited_error=0.0016 if n == first else 0.8
        )
    layers[first] = replace(layers[first], own_error=0.81, truth_a=7.6e-7, truth_b=0.81)
    x = layers[first]
    facts = (
        ("where", f"#{first} {x.op}  {x.node}"),
        ("own", "0.81, 826 × its limit of 9.8e-4   (inherited 0.0016)"),
        ("why", "24 of 24 values of batch_norm_0.w_2 exceed fp16 (max 65 504): inf"),
        ("truth", "A is 7.6e-7 from float64, B 0.81"),
        ("output", f"{layers[-1].value} has error 1.0, limit 0.022"),
        ("layers", f"{first} agree, 1 own error, {len(layers) - first - 1} inherited"),
        ("repair", f"with #{first} in fp32 all {len(layers)} layers agree"),
    )
    steps = (
        (
            "Convert again and keep this layer in fp32.",
            f"graphdoc convert encoder.onnx -o fixed.onnx --to fp16 --keep '{x.node}'",
        ),
        (
            "Cut the layer out for a bug report.",
            "graphdoc reduce encoder.w16.onnx -o bug.onnx --compare encoder.onnx",
        ),
        ("Write the report.", "graphdoc compare encoder.onnx encoder.w16.onnx -o report.html"),
    )
    sentence = f"from #{first} of {len(layers)} on; B is wrong, by this layer's own error"
    return layers, _verdict(Kind.OWN, 1, "✗", "differs", sentence, facts=facts, next_steps=steps, first=first)


def _nan(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    first = len(layers) // 3
    inf = float("inf")
    for n in range(first, len(layers)):
        bad = replace(
            layers[n].metrics or Metrics(size=1),
            error=inf,
            nan_b=12,
            nonfinite_differ=12,
            b_worst=float("nan"),
        )
        layers[n] = replace(
            layers[n], status=Status.NAN, error=inf, metrics=bad, own_error=inf if n == first else None
        )
    x = layers[first]
    facts = (
        ("where", f"#{first} {x.op}  {x.node}, element [0, 5, 0, 0], 12 of 4 096 elements"),
        ("how", "0 ÷ 0"),
    )
    sentence = f"the first NaN is born at #{first} {x.op} in B; A has none"
    return layers, _verdict(Kind.NAN, 1, "∅", "differs", sentence, facts=facts, first=first)


def _ties(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    layers[-1] = replace(
        layers[-1],
        op="TopK",
        dtype="int64",
        status=Status.REMARK,
        error=0.25,
        limit=None,
        own_limit=None,
        own_error=None,
        inherited_error=None,
        truth_a=None,
        truth_b=None,
        note="another index among equal values",
    )
    sentence = f"up to ties: #{len(layers) - 1} TopK picks another index among equal values, 3 of 12 times"
    return layers, _verdict(Kind.TIES, 0, "✓", "agrees", sentence)


def _remark(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    n = len(layers) // 2
    layers[n] = replace(layers[n], status=Status.REMARK, own_error=0.02, error=0.02)
    sentence = f"the outputs agree. 1 layer inside does not; #{n + 1} hides it again"
    return layers, _verdict(Kind.REMARK, 0, "▲", "agrees with a remark", sentence, first=n)


def _nothing(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    sentence = "nothing was compared: A and B share no value name and no structure"
    steps = (("List the layers of both.", "graphdoc inspect encoder.onnx --layers"),)
    return layers, _verdict(Kind.NOTHING, 5, "–", "nothing compared", sentence, next_steps=steps)


def _one_side(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    half = len(layers) // 2
    blank = {"error": None, "limit": None, "own_error": None, "own_limit": None, "inherited_error": None}
    for n in range(half, len(layers)):
        layers[n] = replace(
            layers[n],
            status=Status.SKIPPED,
            metrics=None,
            truth_a=None,
            truth_b=None,
            time_b=None,
            note="B did not get here",
            **blank,
        )
    sentence = f"only A ran. B stopped at #{half}: out of memory. The {half} layers before it agree"
    return layers, _verdict(Kind.ONE_SIDE, 4, "✗", "failed", sentence)


def _outputs_only(layers: list[Layer]) -> tuple[list[Layer], Verdict]:
    """Nothing but total errors: no own errors, no float64, no times, no inputs."""
    bare = [
        Layer(
            index=x.index,
            value=x.value,
            node=x.node,
            op=x.op,
            error=x.error,
            limit=x.limit,
            metrics=x.metrics,
        )
        for x in layers
    ]
    return _agrees(bare)


OUTCOMES: dict[str, Edit] = {
    "agrees": _agrees,
    "differs": _differs,
    "nan": _nan,
    "ties": _ties,
    "remark": _remark,
    "nothing": _nothing,
    "one side": _one_side,
    "outputs only": _outputs_only,
}
