"""Tree ensembles of ai.onnx.ml: the attributes of three operators over ml_forest.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import ml_forest as forest
from graphdoc.engine.ops import ml_scores
from graphdoc.engine.ops.table import Array, Call, TensorType, op

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _features(call: Call, x: Array) -> Array:
    """Return x as float64 if it is, else in float32 (float64 in truth mode): what splits are compared in."""
    x = ml_scores.rows(x)
    return x if x.dtype == np.float64 else x.astype(call.real(np.float32), copy=False)


def _check_width(call: Call, nodes: forest.Nodes, x: Array) -> None:
    """Raise ValueError when a tree asks for a feature that x does not have."""
    if "width" not in call.memo:
        call.memo["width"] = int(nodes.feature.max()) + 1 if len(nodes.feature) else 0
    if x.shape[1] < call.memo["width"]:
        raise ValueError(f"the trees use {call.memo['width']} features, the input has {x.shape[1]}")


def _first(*values: Any) -> Any:
    """Return the first attribute that is present and not empty, else an empty list."""
    return next((value for value in values if value is not None and len(value)), [])


def _prefixed(attributes: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: attributes.get(f"nodes_{name}") for name in names}


NODE_ATTRIBUTES = (
    "treeids",
    "nodeids",
    "modes",
    "falsenodeids",
    "truenodeids",
    "featureids",
    "values",
    "values_as_tensor",
    "missing_value_tracks_true",
)


# ---- TreeEnsembleRegressor ----------------------------------------------------------------------------


def _infer_regressor(call: Call, x: TensorType, *, n_targets: int = 1, **attributes: Any) -> TensorType:
    batch = None if x.shape is None else (x.shape[0] if len(x.shape) == 2 else 1)
    return TensorType(call.real(np.float32), (batch, n_targets))


@op("TreeEnsembleRegressor", 1, 3, 5, domain=ML, infer=_infer_regressor)
def tree_ensemble_regressor(
    call: Call,
    X: Array,
    *,
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    post_transform: str = "NONE",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Array | None = None,
    target_ids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_treeids: Sequence[int] = (),
    target_weights: Sequence[float] | None = None,
    target_weights_as_tensor: Array | None = None,
    **attributes: Any,
) -> Array:
    """Scores of a tree ensemble, ai.onnx.ml versions 1, 3 (…_as_tensor) and 5 (deprecated).

    X: [N, F] float, double or integer, computed in float32 (double in double). Returns float32
    [N, n_targets]. A post transform other than PROBIT has no effect on a single target. A target without a
    vote has its base value, as the specification says; ONNX Runtime leaves it at 0.
    """
    x = _features(call, X)
    if "forest" not in call.memo:
        call.memo["forest"] = forest.from_ids(
            call,
            x.dtype,
            n_targets,
            (target_treeids, target_nodeids),
            target_ids,
            _first(target_weights_as_tensor, target_weights),
            _prefixed(attributes, *NODE_ATTRIBUTES),
        )
    nodes, votes = call.memo["forest"]
    _check_width(call, nodes, x)
    values = _first(base_values_as_tensor, base_values)
    base = call.xp.asarray(np.asarray(values, x.dtype)) if len(values) == n_targets else None
    scores = forest.regress(call.xp, nodes, votes, x, aggregate_function, post_transform, base)
    return scores.astype(call.real(np.float32), copy=False)


# ---- TreeEnsembleClassifier ---------------------------------------------------------------------------


def _infer_classifier(
    call: Call,
    x: TensorType,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    **attributes: Any,
) -> tuple[TensorType, TensorType]:
    columns = len(classlabels_strings or classlabels_int64s or ())
    return ml_scores.classified(call, x, classlabels_int64s, classlabels_strings, columns)


@op("TreeEnsembleClassifier", 1, 3, 5, domain=ML, infer=_infer_classifier)
def tree_ensemble_classifier(
    call: Call,
    X: Array,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Array | None = None,
    class_ids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_treeids: Sequence[int] = (),
    class_weights: Sequence[float] | None = None,
    class_weights_as_tensor: Array | None = None,
    **attributes: Any,
) -> tuple[Array, Array]:
    """Top class and scores of a tree ensemble, ai.onnx.ml versions 1, 3 (…_as_tensor) and 5 (deprecated).

    X: [N, F] float, double or integer. Returns labels (int64 or string) [N] and scores float32 [N, classes].
    The specification leaves the top class of two classes open; see :func:`_two_classes`.
    """
    xp, x = call.xp, _features(call, X)
    weights = _first(class_weights_as_tensor, class_weights)
    labels = ml_scores.label_table(xp, classlabels_int64s, classlabels_strings)
    if "forest" not in call.memo:
        ids = (class_treeids, class_nodeids)
        nodes = _prefixed(attributes, *NODE_ATTRIBUTES)
        call.memo["forest"] = forest.from_ids(call, x.dtype, len(labels), ids, class_ids, weights, nodes)
        call.memo["lone"] = len(set(class_ids)) == 1
        call.memo["shares"] = bool(np.all(np.asarray(weights) >= 0))
    nodes, votes = call.memo["forest"]
    _check_width(call, nodes, x)
    base = xp.asarray(np.asarray(_first(base_values_as_tensor, base_values), x.dtype))
    decide = _two_classes if len(labels) == 2 else _many_classes
    indices, parts = [xp.zeros(0, np.int64)], [xp.zeros((0, len(labels)), x.dtype)]
    for block in forest.blocks(x.shape[0], len(nodes.roots)):
        leaves = forest.leaves_of(xp, nodes, x[block])
        total, voted = forest.total_of(xp, votes, leaves), forest.voted_of(xp, votes, leaves)
        index, scores = decide(call, total, voted, base, post_transform)
        indices.append(index)
        parts.append(scores)
    top = xp.concatenate(indices)
    scores = xp.concatenate(parts).astype(call.real(np.float32), copy=False)
    return _labelled(call, labels, top), scores


def _labelled(call: Call, labels: Array, top: Array) -> Array:
    """Return the labels; with votes for two int64 classes 0 and 1 whatever the labels (ONNX Runtime)."""
    if len(labels) == 2 and labels.dtype != object and not call.memo["lone"]:
        return top
    return ml_scores.pick(labels, top)


def _many_classes(
    call: Call, total: Array, voted: Array | None, base: Array, post_transform: str
) -> tuple[Array, Array]:
    """Three and more classes (or one): the first highest score among those with a vote or a base value."""
    xp = call.xp
    if len(base) == total.shape[1]:
        total, voted = total + base, None
    ranked = total if voted is None else xp.where(voted, total, -np.inf)
    finish = ml_scores.transform if total.shape[1] > 1 else ml_scores.transform_single
    return xp.argmax(ranked, axis=1).astype(np.int64), finish(xp, total, post_transform)


def _two_classes(
    call: Call, total: Array, voted: Array | None, base: Array, post_transform: str
) -> tuple[Array, Array]:
    """Two classes, by ONNX Runtime's rule.

    1. One class alone has weights in the file ("lone"): its score, a share of 1 when no weight is negative
       and a signed margin otherwise, is the score of the second class, and decides at 0.5 or at 0.
    2. Both have: the second class wins when its score is positive, whatever the first one's.
    3. With two base values a row's first score plus the second base value is the margin of both classes
       where the second class has a vote; elsewhere the first class alone gets its base value. A class
       without a vote has the score 0.
    """
    xp = call.xp
    first, second = total[:, 0], total[:, 1]
    yes = xp.ones(total.shape, np.bool_) if voted is None else voted
    if len(base) == 2:
        margin = base[1] + first
        second = xp.where(yes[:, 1], margin, 0)
        first = xp.where(yes[:, 1], xp.where(yes[:, 0], -margin, 0), first + base[0])
    elif len(base) == 1:
        first = xp.where(yes[:, 0], first + base[0], 0)
    positive = xp.where(yes[:, 1], second, first)
    shares = call.memo["shares"] and call.memo["lone"]
    top = (positive > (0.5 if shares else 0)).astype(np.int64)
    pair = ml_scores.transform(xp, xp.stack([first, second], axis=1), post_transform)
    if len(base) == 2:
        return top, pair
    alone = ml_scores.second_class(xp, first, post_transform, complement=shares)
    return top, xp.where(yes[:, 1:], pair, alone)


# ---- TreeEnsemble -------------------------------------------------------------------------------------


def _infer_ensemble(call: Call, x: TensorType, *, n_targets: int = 1, **attributes: Any) -> TensorType:
    batch = None if x.shape is None else (x.shape[0] if len(x.shape) == 2 else 1)
    return TensorType(x.dtype, (batch, n_targets))


@op("TreeEnsemble", 5, domain=ML, infer=_infer_ensemble)
def tree_ensemble(
    call: Call,
    X: Array,
    *,
    tree_roots: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_splits: Array,
    nodes_modes: Array,
    nodes_truenodeids: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int],
    nodes_falseleafs: Sequence[int],
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
    membership_values: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_hitrates: Array | None = None,
) -> Array:
    """Scores of a tree ensemble, ai.onnx.ml version 5.

    X: [N, F] float16, float or double; returns the same dtype, [N, n_targets]. Computed in float32 at least.
    """
    x = _features(call, X)
    if "forest" not in call.memo:
        inner = len(nodes_modes)
        children = forest.children_of(
            inner,
            len(leaf_targetids),
            (nodes_falsenodeids, nodes_falseleafs),
            (nodes_truenodeids, nodes_trueleafs),
        )
        mode = np.concatenate(
            [np.asarray(nodes_modes, np.int8), np.full(len(leaf_targetids), forest.LEAF, np.int8)]
        )
        members, group = forest.memberships(mode, membership_values)
        nodes = forest.make_nodes(
            call.xp,
            x.dtype,
            mode,
            forest.padded(nodes_featureids, len(mode)),
            forest.padded(nodes_splits, len(mode)),
            forest.padded(nodes_missing_value_tracks_true, len(mode)),
            children,
            np.asarray(tree_roots, np.int64),
            members,
            group,
        )
        at = np.arange(inner, len(mode))
        votes = forest.make_votes(
            call.xp, x.dtype, mode == forest.LEAF, at, leaf_targetids, leaf_weights, n_targets
        )
        call.memo["forest"] = nodes, votes
    nodes, votes = call.memo["forest"]
    _check_width(call, nodes, x)
    name, finish = forest.AGGREGATES[aggregate_function], TRANSFORMS[post_transform]
    return forest.regress(call.xp, nodes, votes, x, name, finish, None).astype(X.dtype, copy=False)
