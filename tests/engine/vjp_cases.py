"""Operators for reverse passes: a body of nodes over inputs a, b …, and the inputs; y is the result."""

from typing import Any

import numpy as np

RNG = np.random.default_rng(0)


def sample(*shape: int, low: float = 0.5, high: float = 2.0) -> Any:
    """Positive numbers away from 0."""
    return RNG.uniform(low, high, shape)


def signed(*shape: int) -> Any:
    """Numbers of both signs."""
    return RNG.standard_normal(shape)


def apart(*shape: int) -> Any:
    """Numbers of both signs, no two closer than 0.1, none closer than 0.05 to 0 (kinks stay clear)."""
    count = int(np.prod(shape))
    return (RNG.permutation(count) - count // 2 + 0.5).reshape(shape) / 10.0


def state(*shape: int) -> Any:
    """Small numbers of both signs."""
    return RNG.standard_normal(shape) / 2


def _elementwise() -> dict[str, tuple[str, dict[str, Any]]]:
    names = (
        *(
            "Abs",
            "Reciprocal",
            "Sin",
            "Cos",
            "Erf",
            "Softplus",
            "LeakyRelu",
            "HardSwish",
            "Elu",
            "Selu",
            "Celu",
        ),
        *(
            "Mish",
            "Softsign",
            "Sinh",
            "Cosh",
            "Tan",
            "Atan",
            "Asinh",
            "ThresholdedRelu",
            "Shrink",
            "Exp",
            "Tanh",
        ),
        *("Sigmoid", "Relu", "Neg", "Identity"),
    )
    cases = {name: (f"y = {name}(a)", {"a": apart(3, 4)}) for name in names}
    cases |= {name: (f"y = {name}(a)", {"a": sample(3, 4)}) for name in ("Log", "Sqrt")}
    cases |= {name: (f"y = {name}(a)", {"a": apart(6) / 4}) for name in ("Acos", "Asin", "Atanh")}
    cases["Acosh"] = ("y = Acosh(a)", {"a": sample(5, low=1.5, high=3)})
    cases["HardSigmoid"] = ("y = HardSigmoid <alpha=0.3, beta=0.4> (a)", {"a": 3 * apart(4, 5)})
    cases["Gelu"] = ("y = Gelu(a)", {"a": signed(3, 4)})
    cases["Gelu tanh"] = ('y = Gelu <approximate="tanh"> (a)', {"a": signed(3, 4)})
    cases["Swish"] = ("y = Mish(a)", {"a": signed(4)})
    for name in ("Add", "Sub", "Mul", "Div"):
        cases[name] = (f"y = {name}(a, b)", {"a": sample(2, 1, 3), "b": sample(4, 1)})
    for name in ("Max", "Min", "Sum", "Mean"):
        cases[name] = (f"y = {name}(a, b, c)", {"a": signed(2, 3), "b": signed(3), "c": signed(2, 1)})
    cases["Pow"] = ("y = Pow(a, b)", {"a": sample(2, 3), "b": sample(3)})
    cases["PRelu"] = ("y = PRelu(a, b)", {"a": apart(2, 3), "b": sample(3)})
    cases["Clip"] = ("y = Clip(a, b, c)", {"a": apart(3, 4), "b": np.array(-0.31), "c": np.array(0.22)})
    cases["Clip to one side"] = ("y = Clip(a, b)", {"a": apart(3, 4), "b": np.array(-0.31)})
    cases["Where"] = (
        "z = Constant <value_float=0.0> () zd = CastLike(z, a) m = Greater(a, zd) y = Where(m, a, b)",
        {"a": apart(2, 3), "b": signed(2, 1)},
    )
    return cases


def _products() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "MatMul": ("y = MatMul(a, b)", {"a": signed(2, 1, 3, 4), "b": signed(5, 4, 2)}),
        "MatMul of vectors": ("y = MatMul(a, b)", {"a": signed(4), "b": signed(4)}),
        "Gemm": ("y = Gemm <alpha=0.5, beta=2.0> (a, b, c)",
                 {"a": signed(3, 4), "b": signed(4, 2), "c": signed(2)}),
        "Gemm transposed": ("y = Gemm <transA=1, transB=1> (a, b)", {"a": signed(4, 3), "b": signed(2, 4)}),
        "Einsum": ('y = Einsum <equation="bij,bjk->bik"> (a, b)',
                   {"a": signed(2, 3, 4), "b": signed(2, 4, 2)}),
        "Einsum summed": ('y = Einsum <equation="ij,k->i"> (a, b)', {"a": signed(2, 3), "b": signed(4)}),
        "Einsum with dots": ('y = Einsum <equation="...i,...i"> (a, b)',
                             {"a": signed(2, 3), "b": signed(2, 3)}),
        "Conv": ("y = Conv <pads=[1,0,2,1], strides=[2,1]> (a, b, c)",
                 {"a": signed(2, 3, 7, 6), "b": signed(4, 3, 3, 2), "c": signed(4)}),
        "Conv in groups": ("y = Conv <group=2, dilations=[2,1]> (a, b)",
                           {"a": signed(1, 4, 7, 5), "b": signed(6, 2, 2, 3)}),
        "Conv per channel": ('y = Conv <group=3, auto_pad="SAME_UPPER", strides=[2,2]> (a, b)',
                             {"a": signed(2, 3, 5, 6), "b": signed(3, 1, 3, 3)}),
        "Conv 1D": ("y = Conv <dilations=[3], pads=[3,3]> (a, b)",
                    {"a": signed(1, 2, 9), "b": signed(2, 2, 3)}),
        "Conv 3D": ("y = Conv (a, b)", {"a": signed(1, 2, 3, 4, 3), "b": signed(3, 2, 2, 2, 2)}),
        "ConvTranspose": ("y = ConvTranspose <strides=[2,3], pads=[1,0,0,1], output_padding=[1,0]> (a, b, c)",
                          {"a": signed(2, 4, 3, 3), "b": signed(4, 2, 3, 3), "c": signed(2)}),
        "ConvTranspose in groups": ("y = ConvTranspose <group=2> (a, b)",
                                    {"a": signed(1, 4, 3, 3), "b": signed(4, 2, 2, 2)}),
    }  # fmt: skip


def _pools() -> dict[str, tuple[str, dict[str, Any]]]:
    image = apart(1, 2, 6, 5)
    return {
        "MaxPool": ("y = MaxPool <kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]> (a)", {"a": image}),
        "AveragePool": ("y = AveragePool <kernel_shape=[3,2], pads=[1,1,0,0]> (a)", {"a": image}),
        "AveragePool with pads": (
            "y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1, strides=[2,2]> (a)",
            {"a": image},
        ),
        "LpPool": ("y = LpPool <kernel_shape=[2,2], p=3> (a)", {"a": image}),
        "GlobalAveragePool": ("y = GlobalAveragePool(a)", {"a": image}),
        "GlobalMaxPool": ("y = GlobalMaxPool(a)", {"a": image}),
    }


def _reductions() -> dict[str, tuple[str, dict[str, Any]]]:
    cases = {}
    for name in ("Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod", "LogSum"):
        op = f"Reduce{name}"
        data = sample if name == "LogSum" else apart
        axes = "s = Constant <value_ints=[-1,0]> ()"
        cases[op] = (f"{axes} y = {op} <keepdims=0> (a, s)", {"a": data(3, 2, 4)})
        cases[f"{op} of all"] = (f"y = {op}(a)", {"a": data(2, 3)})
    zero = "s = Constant <value_int=1> ()"
    cases["CumSum"] = (f"{zero} y = CumSum(a, s)", {"a": signed(2, 4)})
    cases["CumSum backwards"] = (f"{zero} y = CumSum <exclusive=1, reverse=1> (a, s)", {"a": signed(2, 4)})
    return cases


def _norms() -> dict[str, tuple[str, dict[str, Any]]]:
    x, channels = signed(2, 4, 3, 2), {"b": sample(4), "c": signed(4)}
    return {
        "Softmax": ("y = Softmax <axis=1> (a)", {"a": signed(2, 3, 4)}),
        "LogSoftmax": ("y = LogSoftmax(a)", {"a": signed(2, 3, 4)}),
        "LayerNormalization": (
            "y = LayerNormalization <axis=2> (a, b, c)",
            {"a": x, "b": sample(3, 2), "c": signed(3, 2)},
        ),
        "LayerNormalization alone": ("y = LayerNormalization(a, b)", {"a": signed(3, 5), "b": sample(5)}),
        "RMSNormalization": ("y = RMSNormalization(a, b)", {"a": signed(3, 5), "b": sample(5)}),
        "SimplifiedLayerNormalization": (
            "y = SimplifiedLayerNormalization(a, b)",
            {"a": signed(3, 5), "b": sample(5)},
        ),
        "InstanceNormalization": ("y = InstanceNormalization(a, b, c)", {"a": x, **channels}),
        "BatchNormalization": (
            "y = BatchNormalization(a, b, c, d, e)",
            {"a": x, **channels, "d": signed(4), "e": sample(4)},
        ),
        "LpNormalization": ("y = LpNormalization <axis=1> (a)", {"a": signed(2, 3, 2)}),
        "LpNormalization of p 1": ("y = LpNormalization <axis=1, p=1> (a)", {"a": apart(2, 3, 2)}),
        "LRN": ("y = LRN <size=3, alpha=0.3, beta=0.6> (a)", {"a": signed(1, 4, 2, 2)}),
        "LRN of an even size": ("y = LRN <size=4, alpha=0.3> (a)", {"a": signed(1, 5, 2, 2)}),
        "GroupNormalization": ("y = GroupNormalization <num_groups=2> (a, b, c)", {"a": x, **channels}),
        "MeanVarianceNormalization": ("y = MeanVarianceNormalization(a)", {"a": x}),
    }


def _ints(name: str, *values: int) -> str:
    return f"{name} = Constant <value_ints=[{','.join(map(str, values))}]> () "


def _moves() -> dict[str, tuple[str, dict[str, Any]]]:
    a = {"a": signed(3, 4, 5)}
    two = _ints("s", 1, 2) + _ints("e", 3, -1) + _ints("x", 0, 2)
    return {
        "Slice": (f"{two} y = Slice(a, s, e, x)", a),
        "Slice backwards": (_ints("s", -1) + _ints("e", 0) + _ints("x", 1) + _ints("t", -2)
                            + "y = Slice(a, s, e, x, t)", a),
        "Gather": (_ints("i", 2, 0, 2) + "y = Gather <axis=1> (a, i)", a),
        "GatherElements": (_ints("i", 2, 0, 1) + _ints("r", 1, 1, 3) + "k = Reshape(i, r) "
                           "y = GatherElements <axis=2> (a, k)", a),
        "GatherND": (_ints("i", 2, 0, 2, 0, 1, 1) + _ints("r", 3, 2) + "k = Reshape(i, r) "
                     "y = GatherND(a, k)", a),
        "Expand": (_ints("s", 2, 3, 4) + "y = Expand(a, s)", {"a": signed(3, 1)}),
        "Tile": (_ints("s", 2, 3) + "y = Tile(a, s)", {"a": signed(2, 3)}),
        "Pad": (_ints("s", 1, 0, -1, 2) + "y = Pad(a, s)", {"a": signed(2, 4)}),
        "Pad by reflection": (_ints("s", 1, 2, 1, 1) + 'y = Pad <mode="reflect"> (a, s)',
                              {"a": signed(3, 4)}),
        "DepthToSpace": ("y = DepthToSpace <blocksize=2> (a)", {"a": signed(1, 8, 2, 3)}),
        "SpaceToDepth": ("y = SpaceToDepth <blocksize=2> (a)", {"a": signed(1, 2, 4, 6)}),
        "Trilu": ("y = Trilu(a)", {"a": signed(3, 4)}),
        "Concat": ("y = Concat <axis=1> (a, b)", {"a": signed(2, 3), "b": signed(2, 2)}),
        "Split": ("p, q = Split <axis=1, num_outputs=2> (a) r = Mul(p, q) y = Concat <axis=1> (r, q)",
                  {"a": signed(2, 4)}),
        "ScatterElements": (_ints("i", 2, 0) + _ints("r", 1, 2) + "k = Reshape(i, r) "
                            "y = ScatterElements(a, k, b)",
                            {"a": signed(3, 2), "b": signed(1, 2)}),
        "ScatterND": (_ints("i", 2, 0) + _ints("r", 2, 1) + "k = Reshape(i, r) y = ScatterND(a, k, b)",
                      {"a": signed(3, 2), "b": signed(2, 2)}),
        "ReverseSequence": (_ints("i", 2, 3) + "y = ReverseSequence <batch_axis=1, time_axis=0> (a, i)",
                            {"a": signed(3, 2, 2)}),
        "TopK": (_ints("k", 2) + "v, i = TopK <axis=1> (a, k) y = Mul(v, v)", {"a": apart(3, 4)}),
        "Transpose": ("y = Transpose <perm=[2,0,1]> (a)", a),
        "Reshape": (_ints("s", 4, -1) + "y = Reshape(a, s)", a),
        "Flatten": ("y = Flatten(a)", a),
        "Squeeze": ("y = Squeeze(a)", {"a": signed(1, 3, 1)}),
        "Unsqueeze": (_ints("s", 0, 2) + "y = Unsqueeze(a, s)", {"a": signed(3)}),
        "Cast": ("f = Cast <to=11> (a) y = Mul(f, a)", {"a": signed(3)}),
        "Dropout": ("y = Dropout(a)", a),
        "Resize nearest": (_ints("s", 1, 1, 5, 3) + 'y = Resize <mode="nearest"> (a, , , s)',
                         {"a": signed(1, 2, 3, 4)}),
        "Resize linear": (_ints("s", 1, 2, 5, 7) + 'y = Resize <mode="linear"> (a, , , s)',
                         {"a": signed(1, 2, 3, 4)}),
        "Resize cubic": (
            _ints("s", 1, 2, 6, 3)
            + 'y = Resize <mode="cubic", coordinate_transformation_mode="align_corners"> (a, , , s)',
            {"a": signed(1, 2, 3, 4)},
        ),
    }  # fmt: skip


def _recurrent() -> dict[str, tuple[str, dict[str, Any]]]:
    cases: dict[str, tuple[str, dict[str, Any]]] = {}
    for op, gates, states in (("RNN", 1, 1), ("GRU", 3, 1), ("LSTM", 4, 2)):
        for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            weights = {
                "w": state(count, gates * 3, 2),
                "r": state(count, gates * 3, 3),
                "p": state(count, 2 * gates * 3),
            }
            start = {"h": state(count, 2, 3)} | ({"c": state(count, 2, 3)} if states == 2 else {})
            listed = ", ".join(["v", "l", "m"][: 1 + states])
            inputs = ", ".join(["a", "w", "r", "p", "s", *start])
            text = _ints("n", 4, 2) + "s = Cast <to=6> (n) "
            text += f'{listed} = {op} <hidden_size=3, direction="{direction}"> ({inputs}) '
            text += _ints("f", -1) + "v2 = Reshape(v, f) l2 = Reshape(l, f) "
            text += "y = Concat <axis=0> (v2, l2)"
            cases[f"{op} {direction}"] = (text, {"a": signed(4, 2, 2), **weights, **start})
            changing = text.replace("a, w, r, p,", "a, w2, r2, p2,")
            cases[f"{op} {direction}, weights"] = (
                changing,
                {"a": signed(4, 2, 2), **{f"{key}2": x for key, x in weights.items()}, **start},
            )
    text, feeds = cases["GRU forward, weights"]
    cases["GRU that resets after"] = (text.replace("GRU <", "GRU <linear_before_reset=1, "), feeds)
    text, feeds = cases["LSTM bidirectional, weights"]
    cases["LSTM that couples its gates"] = (text.replace("LSTM <", "LSTM <input_forget=1, "), feeds)
    text, feeds = cases["LSTM forward"]
    cases["LSTM with other activations"] = (
        text.replace("LSTM <", 'LSTM <activations=["HardSigmoid", "Softsign", "Tanh"], clip=2.0, '),
        feeds,
    )
    return cases


def _bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    """Operators that go back through the function body of their schema."""
    heads = {"a": signed(1, 2, 3, 4), "b": signed(1, 2, 5, 4), "c": signed(1, 2, 5, 4)}
    return {
        "Attention": ("y = Attention(a, b, c)", heads),
        "Attention that looks back": ("y = Attention <is_causal=1, scale=0.7> (a, b, c)", heads),
        "RotaryEmbedding": (
            "y = RotaryEmbedding(a, b, c)",
            {"a": signed(2, 3, 4, 4), "b": signed(2, 4, 2), "c": signed(2, 4, 2)},
        ),
    }


def _fused() -> dict[str, tuple[str, dict[str, Any]]]:
    """Operators of com.microsoft."""
    image = {"a": signed(1, 2, 5, 4), "b": signed(3, 2, 2, 2), "c": signed(3)}
    skip = {"a": signed(2, 3, 4), "b": signed(2, 3, 4), "c": sample(4)}
    cases = {
        f"FusedConv with {name}": (
            f'y = com.microsoft.FusedConv <activation="{name}"{more}, pads=[1,0,0,1]> (a, b, c)',
            image,
        )
        for name, more in (
            ("Relu", ""),
            ("Tanh", ""),
            ("Sigmoid", ""),
            ("LeakyRelu", ", activation_params=[0.3]"),
            ("Clip", ", activation_params=[-1.0, 1.5]"),
            ("HardSigmoid", ", activation_params=[0.3, 0.4]"),
        )
    }
    cases["FusedConv with Z"] = (
        'y = com.microsoft.FusedConv <activation="Relu"> (a, b, c, d)',
        {**image, "d": signed(1, 3, 4, 3)},
    )
    cases["SkipLayerNormalization"] = (
        "p, m, v, s = com.microsoft.SkipLayerNormalization (a, b, c, d, e) y = Mul(p, s)",
        {**skip, "d": signed(4), "e": signed(4)},
    )
    cases["SkipSimplifiedLayerNormalization"] = (
        "p, m, v, s = com.microsoft.SkipSimplifiedLayerNormalization (a, b, c, d) y = Add(p, s)",
        {**skip, "d": signed(4)},
    )
    cases["QuickGelu"] = ("y = com.microsoft.QuickGelu (a)", {"a": signed(3, 4)})
    return cases


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **_fused(),
    **_bodies(),
    **_elementwise(),
    **_products(),
    **_pools(),
    **_reductions(),
    **_norms(),
    **_moves(),
    **_recurrent(),
}

FIXED = frozenset({"w", "r", "p"})
"""Inputs that stay as they are: weights of recurrent layers."""
