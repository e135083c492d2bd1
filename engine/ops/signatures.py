"""What operators expect of the sizes of their inputs, in letters: read when one fails, to say which is wrong.

``X T B I; W D 3H I``: input X has three axes, W's second one is three times H. ``*``: any axes more. ``_``:
any size. ``()``: one element of any rank. ``?`` after a name: the input may have one element instead.
"""

_CELL = "X T B I; W D {0}H I; R D {0}H H; B D {1}H; sequence_lens B; initial_h D B H"
_BATCH_FIRST = "X B T I; W D {0}H I; R D {0}H H; B D {1}H; sequence_lens B; initial_h B D H"

SIGNATURES: dict[str, str] = {
    "RNN": _CELL.format(1, 2),
    "GRU": _CELL.format(3, 6),
    "LSTM": _CELL.format(4, 8) + "; initial_c D B H; P D 3H",
    "Conv": "X N C *; W M _ *; B M",
    "ConvInteger": "x N C *; w M _ *; x_zero_point (); w_zero_point? M",
    "ConvTranspose": "X N C *; W C _ *",
    "QLinearConv": (
        "x N C *; x_scale (); x_zero_point (); w M _ *; w_scale? M; w_zero_point? M; y_scale (); "
        "y_zero_point (); B M"
    ),
    "BatchNormalization": "X N C *; scale C; B C; mean C; var C",
    "InstanceNormalization": "input N C *; scale C; B C",
    "GroupNormalization": "X N C *; scale _; bias _",
    "Gemm": "A _ _; B _ _",
    "Clip": "input *; min (); max ()",
    "Range": "start (); limit (); delta ()",
    "OneHot": "indices *; depth (); values 2",
    "TopK": "X _ *; K ()",
    "Slice": "data *; starts n; ends n; axes n; steps n",
    "Trilu": "input *; k ()",
    "CumSum": "x *; axis ()",
    "Dropout": "data *; ratio (); training_mode ()",
    "Tile": "input *; repeats n",
    "Expand": "input *; shape n",
    "Reshape": "data *; shape n",
    "ConstantOfShape": "input n",
    "Unsqueeze": "data *; axes n",
    "Squeeze": "data *; axes n",
    "Pad": "data *; pads n; constant_value (); axes m",
    "Compress": "input *; condition n",
    "NonMaxSuppression": (
        "boxes N S 4; scores N C S; max_output_boxes_per_class (); iou_threshold (); score_threshold ()"
    ),
    "RoiAlign": "X N C H W; rois R 4; batch_indices R",
    "MaxRoiPool": "X N C H W; rois R 5",
    "DeformConv": "X N C H W; W M _ K L; offset N _ P Q; B M; mask N _ P Q",
    "GridSample": "X N C *; grid N *",
    "AffineGrid": "theta N _ _; size n",
    "DepthToSpace": "input N C H W",
    "SpaceToDepth": "input N C H W",
    "GlobalAveragePool": "X N C *",
    "GlobalMaxPool": "X N C *",
    "GlobalLpPool": "X N C *",
    "LRN": "X N C *",
    "Col2Im": "input N _ _; image_shape n; block_shape n",
    "ReverseSequence": "input _ _ *; sequence_lens _",
    "STFT": "signal B T _; frame_step (); window w; frame_length ()",
    "DFT": "input _ *; dft_length (); axis ()",
    "MelWeightMatrix": (
        "num_mel_bins (); dft_length (); sample_rate (); lower_edge_hertz (); upper_edge_hertz ()"
    ),
    "HannWindow": "size ()",
    "HammingWindow": "size ()",
    "BlackmanWindow": "size ()",
    "NegativeLogLikelihoodLoss": "input N C *; target N *; weight C",
    "SoftmaxCrossEntropyLoss": "scores N C *; labels N *; weights C",
    "Adagrad": "R (); T ()",
    "Adam": "R (); T ()",
    "Momentum": "R (); T ()",
    "Attention": "Q N _ _ *; K N _ _ *; V N _ _ *",
    "TreeEnsemble": "X N F",
    "CenterCropPad": "input_data *; shape n",
    "ImageDecoder": "encoded_stream n",
    "EyeLike": "input _ _",
}
"""By operator; most versions of one agree, and what only some have is left out."""

BATCH_FIRST: dict[str, str] = {
    "RNN": _BATCH_FIRST.format(1, 2),
    "GRU": _BATCH_FIRST.format(3, 6),
    "LSTM": _BATCH_FIRST.format(4, 8) + "; initial_c B D H; P D 3H",
}
"""The same of recurrent layers with layout 1."""

BROADCAST = frozenset(
    {
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Pow",
            "Mod",
            "Max",
            "Min",
            "Mean",
            "Sum",
            "PRelu",
            "Where",
            "BitShift",
        ),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "StringConcat"),
        *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Expand"),
    }
)
"""Operators whose inputs stretch to one another."""

INDEXED = frozenset({"Gather", "GatherElements", "ScatterElements", "Scatter"})
"""Operators with (data, indices) and an axis."""
