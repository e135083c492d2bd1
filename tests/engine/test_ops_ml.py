"""ai.onnx.ml against ONNX Runtime, and by hand where it differs from the specification."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc.engine.errors import RunnerError
from graphdoc.engine.ops import ml_forest
from graphdoc.engine.ops.table import Call, find
from tests.engine.domains import ML, agree, engine, ort

COMPARISONS = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
ROWS = np.array([[1, 2], [-3, 0.5], [0, -1]], np.float32)


def ml(op: str, *inputs: Any, **options: Any) -> Any:
    """Return the first output of an operator on level 0."""
    return engine(op, *inputs, domain=ML, **options)[0]


def strings(*items: str) -> np.ndarray[Any, Any]:
    return np.array(items, object)


# ---- trees --------------------------------------------------------------------------------------------


class Trees:
    """Seeded random ensembles as node attributes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def _grow(self, rows: list[tuple[Any, ...]], depth: int, modes: list[str]) -> int:
        place = len(rows)
        rows.append(())
        if depth == 0 or self.rng.random() < 0.2:
            rows[place] = ("LEAF", 0, 0.0, 0, 0, 0)
            return place
        # The false branch comes first: ONNX Runtime asks for that order.
        false = self._grow(rows, depth - 1, modes)
        true = self._grow(rows, depth - 1, modes)
        split = float(self.rng.integers(-3, 4)) / 2
        feature, missing = (int(self.rng.integers(n)) for n in (3, 2))
        rows[place] = (str(self.rng.choice(modes)), feature, split, true, false, missing)
        return place

    def attributes(
        self, kind: str, targets: int, voted: list[int] | None, modes: list[str], *, positive: bool
    ) -> dict[str, Any]:
        """Return nodes_* and the votes. voted: the targets each leaf votes for; None: one at random."""
        columns = (
            "modes",
            "featureids",
            "values",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
        found: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (*columns, "treeids", "nodeids")}
        votes: list[tuple[Any, ...]] = []
        for tree in range(4):
            rows: list[tuple[Any, ...]] = []
            self._grow(rows, 3, modes)
            for index, row in enumerate(rows):
                for name, value in zip(columns, row, strict=True):
                    found[f"nodes_{name}"].append(value)
                found["nodes_treeids"].append(tree)
                found["nodes_nodeids"].append(index)
                leaf_votes = [int(self.rng.integers(targets))] if voted is None else voted
                votes += [(tree, index, t, self._weight(positive)) for t in leaf_votes if row[0] == "LEAF"]
        names = ("treeids", "nodeids", "ids", "weights")
        return {
            **found,
            **{f"{kind}_{n}": list(v) for n, v in zip(names, zip(*votes, strict=True), strict=True)},
        }

    def _weight(self, positive: bool) -> float:
        return float(np.float32(self.rng.random() / 4 if positive else self.rng.standard_normal()))

    def features(self, rows: int, dtype: str) -> np.ndarray[Any, Any]:
        x = (self.rng.integers(-4, 5, (rows, 3)) / 2).astype(dtype)
        if x.dtype.kind == "f":
            x[self.rng.random(x.shape) < 0.15] = np.nan
        return x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_tree_classifier(dtype: str, transform: str) -> None:
    """All comparisons, missing values, base values, and the two-class rule in its cases."""
    for seed, (classes, voted) in enumerate([(2, [0]), (2, [1]), (2, [0, 1]), (3, [0, 1, 2]), (3, None)]):
        for bases in (0, classes):
            trees = Trees(seed)
            attributes = trees.attributes(
                "class",
                classes,
                voted,
                COMPARISONS[:1] if seed % 2 else COMPARISONS,
                positive=bool(bases) == bool(seed % 2),
            )
            if bases:
                attributes["base_values"] = [float(np.float32(v)) for v in trees.rng.standard_normal(bases)]
            labels = (
                {"classlabels_int64s": [4, 7, 9][:classes]}
                if bases
                else {"classlabels_strings": ["a", "b", "c"][:classes]}
            )
            options = {**attributes, **labels, "post_transform": transform}
            agree("TreeEnsembleClassifier", trees.features(9, dtype), domain=ML, outputs=2, **options)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tree_regressor(aggregate: str, dtype: str) -> None:
    """One and several targets, with and without base values, single votes and all."""
    for seed, (targets, voted) in enumerate([(1, [0]), (2, [0, 1]), (3, None)]):
        for rows in (0, 1, 60):
            trees = Trees(seed)
            attributes = trees.attributes("target", targets, voted, COMPARISONS, positive=False)
            if voted:
                attributes["base_values"] = [0.25, -1.5][:targets]
            options = {**attributes, "aggregate_function": aggregate, "n_targets": targets}
            agree("TreeEnsembleRegressor", trees.features(rows, dtype), domain=ML, **options)


def test_trees_in_double() -> None:
    """Version 3 gives thresholds and weights as tensors of doubles; they are compared in double."""
    trees = Trees(5)
    attributes = trees.attributes("target", 1, [0], COMPARISONS, positive=False)
    for name in ("nodes_values", "target_weights"):
        values = [value + 1e-12 for value in attributes.pop(name)]
        attributes[f"{name}_as_tensor"] = helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], values)
    agree(
        "TreeEnsembleRegressor",
        trees.features(50, "float64"),
        domain=ML,
        version=3,
        n_targets=1,
        **attributes,
    )


def test_a_target_without_votes_has_its_base_value() -> None:
    """The specification adds base values to the aggregate; ONNX Runtime leaves such a target at 0."""
    leaf = {"nodes_treeids": [0], "nodes_nodeids": [0], "nodes_modes": ["LEAF"], "nodes_values": [0.0]}
    leaf |= {"nodes_featureids": [0], "nodes_truenodeids": [0], "nodes_falsenodeids": [0]}
    vote = {"target_treeids": [0], "target_nodeids": [0], "target_ids": [1], "target_weights": [2.0]}
    got = ml("TreeEnsembleRegressor", ROWS, n_targets=2, base_values=[0.5, 0.25], **leaf, **vote)

    np.testing.assert_array_equal(got, np.float32([[0.5, 2.25]] * 3))


def _ensemble(dtype: int, *, members: bool) -> dict[str, Any]:
    """Two trees of TreeEnsemble: x0 ≤ 0 or a set of x1, then a leaf; and a lone leaf."""
    modes = [0, 6 if members else 4, 0]
    attributes: dict[str, Any] = {
        "tree_roots": [0, 2], "nodes_featureids": [0, 1, 0],
        "nodes_splits": helper.make_tensor("s", dtype, [3], [0.0, 2.0, 0.0]),
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [3], modes),
        "nodes_truenodeids": [1, 0, 3], "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 3], "nodes_falseleafs": [1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 0],
        "leaf_targetids": [0, 1, 0, 1], "n_targets": 2,
        "leaf_weights": helper.make_tensor("w", dtype, [4], [1.0, -2.0, 4.0, 0.5]),
    }  # fmt: skip
    if members:
        attributes["membership_values"] = helper.make_tensor("v", dtype, [3], [2.0, 0.5, float("nan")])
    return attributes


@pytest.mark.parametrize("members", [False, True])
def test_tree_ensemble(*, members: bool) -> None:
    """Version 5: inner nodes and leaves apart, set membership, a tree that is one leaf."""
    x = np.array([[-1, 2], [-1, 0.5], [1, 2], [np.nan, 2], [-1, np.nan]])
    for kind, dtype in ((TensorProto.FLOAT, "float32"), (TensorProto.DOUBLE, "float64")):
        for aggregate in range(4):
            options = {**_ensemble(kind, members=members), "aggregate_function": aggregate}
            agree("TreeEnsemble", x.astype(dtype), domain=ML, version=5, **options)


def test_tree_ensemble_half() -> None:
    """float16 is compared exactly and summed in float32."""
    x = np.array([[-1, 2], [1, 0.5]], np.float16)
    got = ml("TreeEnsemble", x, version=5, **_ensemble(TensorProto.FLOAT16, members=True))

    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, np.float16([[1, 0.5], [4, 0.5]]))


def test_trees_past_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are walked in blocks; the blocks join in order."""
    trees = Trees(2)
    attributes = trees.attributes("target", 1, [0], COMPARISONS, positive=False)
    x = trees.features(100, "float32")
    whole = ml("TreeEnsembleRegressor", x, n_targets=1, **attributes)
    monkeypatch.setattr(ml_forest, "BLOCK", 28)

    np.testing.assert_array_equal(ml("TreeEnsembleRegressor", x, n_targets=1, **attributes), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": [9, 0, 0]}, "tree 0 has no node 9"),
        ({"nodes_falsenodeids": [0, 0, 0]}, "a tree has a cycle"),
        ({"nodes_nodeids": [0, 1, 1]}, "a node id twice"),
        ({"nodes_featureids": [5, 0, 0]}, "the trees use 6 features, the input has 2"),
        ({"target_ids": [3]}, "target 3 of 1"),
        ({"aggregate_function": "MEDIAN"}, "unknown aggregate_function 'MEDIAN'"),
        ({"post_transform": "CUBE", "n_targets": 2}, "unknown post_transform 'CUBE'"),
    ],
)
def test_broken_trees(change: dict[str, Any], message: str) -> None:
    """What cannot be walked is refused, by name."""
    attributes = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.0] * 3, "nodes_featureids": [0] * 3, "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0], "target_nodeids": [1], "target_ids": [0],
        "target_weights": [1.0], "n_targets": 1,
    }  # fmt: skip
    with pytest.raises(RunnerError, match=message):
        ml("TreeEnsembleRegressor", ROWS, **{**attributes, **change})


# ---- linear models and support vectors ----------------------------------------------------------------


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_linear_classifier(transform: str, dtype: str) -> None:
    """One set of coefficients for two labels, and one each."""
    x = ROWS.astype(dtype)
    for labels in ({"classlabels_ints": [5, 7]}, {"classlabels_strings": ["n", "p"]}):
        for weights, intercepts in (([0.1, 0.2], [0.3]), ([0.1, 0.2, 0.3, 0.4], [0.3, 0.0])):
            agree(
                "LinearClassifier", x, domain=ML, outputs=2, coefficients=weights, intercepts=intercepts,
                post_transform=transform, **labels,
            )  # fmt: skip


def test_linear_classifier_refuses_what_does_not_fit() -> None:
    """Labels and coefficients must match."""
    with pytest.raises(RunnerError, match="3 class labels for 2 sets"):
        ml("LinearClassifier", ROWS, coefficients=[1.0] * 4, intercepts=[0.0] * 2, classlabels_ints=[1, 2, 3])
    with pytest.raises(RunnerError, match="3 coefficients for 2 targets of 2 features"):
        ml("LinearClassifier", ROWS, coefficients=[1.0] * 3, intercepts=[0.0] * 2, classlabels_ints=[1, 2])


@pytest.mark.parametrize("transform", [*TRANSFORMS, "PROBIT"])
def test_linear_regressor(transform: str) -> None:
    """A single target knows no transform but PROBIT; wrong intercepts are left out."""
    x = np.abs(ROWS) / 10 + 0.1
    agree(
        "LinearRegressor",
        x,
        domain=ML,
        coefficients=[0.5, 0.3],
        intercepts=[0.3],
        post_transform=transform,
        tolerance=2e-5,
    )
    weights = [0.5, 0.2, 0.3, 0.4]
    for intercepts in ([0.1], [0.1, 0.2]):
        agree(
            "LinearRegressor", x, domain=ML, coefficients=weights, intercepts=intercepts, targets=2,
            post_transform=transform, tolerance=2e-5,
        )  # fmt: skip


def _machine(seed: int, classes: int, *, probabilities: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    counts = [3, 2, 4][:classes]
    pairs = classes * (classes - 1) // 2
    floats = {
        "coefficients": (classes - 1) * sum(counts), "support_vectors": sum(counts) * 2, "rho": pairs,
        **({"prob_a": pairs, "prob_b": pairs} if probabilities else {}),
    }  # fmt: skip
    found: dict[str, Any] = {k: [float(v) for v in rng.standard_normal(n)] for k, n in floats.items()}
    return {**found, "vectors_per_class": counts}


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(kernel: str, *, probabilities: bool) -> None:
    """Votes, decision values, and probabilities coupled from pairs."""
    for classes, labels in ((2, {"classlabels_ints": [3, 9]}), (3, {"classlabels_strings": ["x", "y", "z"]})):
        for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
            options = {**labels, **_machine(3, classes, probabilities=probabilities)}
            options |= {"kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0], "post_transform": transform}
            agree("SVMClassifier", ROWS, domain=ML, outputs=2, tolerance=1e-5, **options)


def test_svm_without_vectors_is_linear() -> None:
    """One set of coefficients a class; two classes have a rule of their own."""
    for weights in ([0.4, 0.1, 0.2, 0.3], [0.4, -0.1, -0.2, 0.3]):
        options = {"rho": [0.1], "classlabels_ints": [3, 9], "kernel_params": [0.0, 0.0, 0.0]}
        agree("SVMClassifier", ROWS, domain=ML, outputs=2, coefficients=weights, **options)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel: str) -> None:
    """With support vectors, without, and as a one-class machine."""
    rng = np.random.default_rng(0)
    vectors = {"support_vectors": [float(v) for v in rng.standard_normal(8)], "n_supports": 4}
    for one_class in (0, 1):
        common = {
            "kernel_type": kernel,
            "kernel_params": [0.3, 0.2, 2.0],
            "rho": [0.1],
            "one_class": one_class,
        }
        agree("SVMRegressor", ROWS, domain=ML, coefficients=[0.5, -1.0, 0.3, 0.2], **common, **vectors)
        agree("SVMRegressor", ROWS, domain=ML, coefficients=[0.5, -1.0], n_supports=0, **common)


# ---- scaling and cleaning -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_scaling(dtype: str) -> None:
    """Scaler and Normalizer give float32 whatever they get; a zero row stays."""
    x = np.array([[1, -2, 0], [0, 0, 0], [-1, -5, -3]], dtype)
    agree("Scaler", x, domain=ML, offset=[1.0, 2.0, 3.0], scale=[2.0, 0.5, 0.1])
    agree("Scaler", x, domain=ML, offset=[1.0], scale=[2.0])
    for norm in ("MAX", "L1", "L2"):
        agree("Normalizer", x, domain=ML, norm=norm)
        agree("Normalizer", x[0], domain=ML, norm=norm)


def test_imputer() -> None:
    """NaN is found too; one value for all, or one a column; other lengths use the first."""
    x = np.array([[np.nan, 1], [2, np.nan], [1, 0]], np.float32)
    for old in (float("nan"), 1.0):
        for new in ([9.0], [9.0, 8.0], [9.0, 8.0, 7.0]):
            agree("Imputer", x, domain=ML, imputed_value_floats=new, replaced_value_float=old)
    agree(
        "Imputer", np.array([[1, 2], [3, 1]]), domain=ML, imputed_value_int64s=[7, 8], replaced_value_int64=1
    )


def test_binarizer() -> None:
    """Strictly greater; the dtype stays."""
    agree("Binarizer", ROWS, domain=ML, threshold=0.5)
    got = ml("Binarizer", np.array([0, 1, 2]), threshold=0.5)

    assert (got.dtype, got.tolist()) == (np.int64, [0, 1, 1])


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("Scaler", {"scale": [1.0, 2.0, 3.0]}, "3 values for 2 features"),
        ("Normalizer", {"norm": "L3"}, "unknown norm 'L3'"),
        ("Imputer", {}, "exactly one of"),
        ("ZipMap", {"classlabels_int64s": [1]}, "1 class labels for 2 scores"),
        ("OneHotEncoder", {"cats_int64s": [7], "zeros": 0}, "unknown category"),
        ("FeatureVectorizer", {"inputdimensions": [1, 2]}, "2 inputdimensions for 1 inputs"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1], "version": 2}, "keys of type object"),
        ("LabelEncoder", {"keys_floats": [1.0], "version": 2}, "one of the values_"),
        (
            "SVMRegressor",
            {"kernel_type": "COSINE", "n_supports": 1, "support_vectors": [1.0, 2.0]},
            "unknown kernel",
        ),
    ],
)
def test_refusals(op: str, attributes: dict[str, Any], message: str) -> None:
    """Attributes that do not fit are named."""
    with pytest.raises(RunnerError, match=message):
        ml(op, ROWS, **attributes)


# ---- encoders -----------------------------------------------------------------------------------------


def test_label_encoder_1() -> None:
    """Strings to positions and back."""
    agree("LabelEncoder", strings("z", "q"), domain=ML, classes_strings=["q", "r"], default_int64=-9)
    agree("LabelEncoder", np.array([0, 5, -1]), domain=ML, classes_strings=["q", "r"])


KEYS: dict[str, tuple[str, list[Any], Any]] = {
    "strings": ("keys_strings", ["a", "b"], strings("b", "x", "a")),
    "int64s": ("keys_int64s", [3, -2], np.array([[-2, 9, 3]])),
    "floats": ("keys_floats", [0.5, 0.0], np.array([-0.0, 0.5, 1.0], np.float32)),
}
VALUES: dict[str, list[Any]] = {
    "values_strings": ["u", "v"],
    "values_int64s": [10, 20],
    "values_floats": [0.25, -1.0],
}


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", VALUES)
def test_label_encoder(version: int, keys: str, values: str) -> None:
    """Every kind of key to every kind of value (but a kind to itself where ONNX Runtime has none)."""
    name, items, x = KEYS[keys]
    options = {name: items, values: VALUES[values], "version": version}
    agree("LabelEncoder", x, domain=ML, **options)


def test_label_encoder_tensors() -> None:
    """Version 4 gives keys, values and default as tensors of more types."""
    doubles = {
        "keys_tensor": helper.make_tensor("k", TensorProto.DOUBLE, [2], [1.0, 3.0]),
        "values_tensor": helper.make_tensor("v", TensorProto.DOUBLE, [2], [7.0, 8.0]),
        "default_tensor": helper.make_tensor("d", TensorProto.DOUBLE, [1], [0.5]),
    }
    agree("LabelEncoder", np.array([1.0, 2.0, 3.0]), domain=ML, version=4, **doubles)
    shorts = {"keys_strings": ["a"], "values_tensor": helper.make_tensor("v", TensorProto.INT16, [1], [7])}
    got = ml("LabelEncoder", strings("a", "b"), version=4, **shorts)

    assert (got.dtype, got.tolist()) == (np.int16, [7, -1])


def test_label_encoder_nan_and_repeated_keys() -> None:
    """NaN finds NaN. Of equal keys version 4 names the last; before, the first counts as in ONNX Runtime."""
    x = np.array([np.nan, 1.0], np.float32)
    keys = {"keys_floats": [1.0, float("nan"), 1.0], "values_int64s": [1, 2, 3]}

    assert ml("LabelEncoder", x, version=2, **keys).tolist() == [2, 1]
    assert ml("LabelEncoder", x, version=4, **keys).tolist() == [2, 3]
    assert ort("LabelEncoder", x[1:], domain=ML, version=2, **keys)[0].tolist() == [1]


def test_category_mapper() -> None:
    """Both ways, unknown ones, and repeated keys."""
    table = {"cats_int64s": [1, 2, 1], "cats_strings": ["a", "b", "c"]}
    agree("CategoryMapper", np.array([[1, 5]]), domain=ML, default_string="?", **table)
    agree("CategoryMapper", strings("b", "z"), domain=ML, default_int64=-7, **table)


def test_one_hot_encoder() -> None:
    """Integers, floats cut to integers, strings; unknown ones are all zero."""
    for dtype in ("int64", "float32", "float64"):
        agree("OneHotEncoder", np.array([[1, 2, 9]], dtype), domain=ML, cats_int64s=[2, 1, 2])
    agree("OneHotEncoder", np.array([1.7, -0.5]), domain=ML, cats_int64s=[0, 1])
    agree("OneHotEncoder", strings("b", "?"), domain=ML, cats_strings=["a", "b"])


def test_feature_vectorizer() -> None:
    """Surplus columns are cut, missing ones are 0, a vector is a row."""
    agree("FeatureVectorizer", ROWS, ROWS, domain=ML, inputdimensions=[1, 3])
    agree("FeatureVectorizer", np.array([1, 2]), np.array([3]), domain=ML, inputdimensions=[2, 1])


def test_array_feature_extractor() -> None:
    """The last axis, any dtype; a vector gives one row; an index out of range is refused."""
    for x in (ROWS, ROWS.astype(np.int64), np.array([["a", "b"]], object), ROWS[0], ROWS.reshape(3, 1, 2)):
        agree("ArrayFeatureExtractor", x, np.array([[1, 0, 1]]), domain=ML)
    for index in (2, -1):
        with pytest.raises(RunnerError, match=r"outside 0 … 1"):
            ml("ArrayFeatureExtractor", ROWS, np.array([index]))


def test_zip_map() -> None:
    """A list of dicts, in the order of the labels."""
    row = find(ML, "ZipMap", 1)
    assert row is not None
    got = row.evaluate(Call(), ROWS, classlabels_strings=["a", "b"])

    assert got == ort("ZipMap", ROWS, domain=ML, classlabels_strings=["a", "b"])[0]
    assert list(got[0]) == ["a", "b"]


def _of_map(op: str, x: dict[Any, Any], **attributes: Any) -> Any:
    row = find(ML, op, 1)
    assert row is not None
    return row.evaluate(Call(), x, **attributes)


def test_maps_to_tensors() -> None:
    """DictVectorizer and CastMap: order, missing keys, text."""
    words = {"string_vocabulary": ["a", "c", "b", "z"]}
    got = _of_map("DictVectorizer", {"a": 4, "c": 8}, **words)
    assert (got.dtype, got.tolist()) == (np.int64, [[4, 8, 0, 0]])
    assert _of_map("DictVectorizer", {"a": 4.5}, **words).dtype == np.float32
    assert _of_map("DictVectorizer", {1: "x"}, int64_vocabulary=[2, 1]).tolist() == [["", "x"]]

    values = {2: 0.5, 0: 1.25}
    assert _of_map("CastMap", values).tolist() == [[1.25, 0.5]]
    assert _of_map("CastMap", values, map_form="SPARSE", max_map=4, cast_to="TO_INT64").tolist() == [
        [1, 0, 0, 0]
    ]
    assert _of_map("CastMap", values, map_form="SPARSE", max_map=2, cast_to="TO_STRING").tolist() == [
        ["1.250000", "0.f"]
    ]
    assert _of_map("CastMap", {0: "2.5"}).tolist() == [[2.5]]
    with pytest.raises(ValueError, match="negative keys"):
        _of_map("CastMap", {-1: 1.0}, map_form="SPARSE")


# ---- truth mode ---------------------------------------------------------------------------------------


def test_truth_mode_stays_in_double() -> None:
    """Scores keep float64 where the specification says float."""
    labels = {"classlabels_ints": [5, 7], "coefficients": [0.1, 0.2], "intercepts": [0.3]}
    _, scores = engine("LinearClassifier", ROWS, domain=ML, outputs=2, truth=True, **labels)
    assert scores.dtype == np.float64
    trees = Trees(0)
    attributes = trees.attributes("class", 3, None, COMPARISONS, positive=False)
    x = trees.features(4, "float32")
    options = {**attributes, "classlabels_int64s": [1, 2, 3], "domain": ML, "outputs": 2}
    for got, want in zip(
        engine("TreeEnsembleClassifier", x, truth=True, **options),
        engine("TreeEnsembleClassifier", x, **options),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    assert engine("Normalizer", ROWS, domain=ML, truth=True)[0].dtype == np.float64


def test_every_version_has_a_row() -> None:
    """Each version the ONNX package describes is there."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == ML:
            row = find(ML, schema.name, schema.since_version)
            assert row is not None, schema.name
            assert row.since == schema.since_version, schema.name
