"""Inference over real models, where a folder of them is given: GRAPHDOC_MODELS=folder of *.onnx files.

A file ``name.npz`` beside ``name.onnx`` holds its inputs; models without one are inferred but not run.
"""

import os
import pathlib
import time
from typing import Any

import numpy as np
import pytest

from graphdoc.engine.infer import Facts
from graphdoc.surgeon.model import load
from tests.engine.infer_check import complaints, observed

FOLDER = os.environ.get("GRAPHDOC_MODELS", "")
MODELS = sorted(pathlib.Path(FOLDER).rglob("*.onnx")) if FOLDER else []

pytestmark = pytest.mark.skipif(not MODELS, reason="GRAPHDOC_MODELS names no folder with models")


def feeds(path: pathlib.Path) -> dict[str, Any] | None:
    """Return the inputs that lie beside a model, None when there are none."""
    beside = path.with_suffix(".npz")
    return dict(np.load(beside, allow_pickle=True)) if beside.exists() else None


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_inference_holds_in_a_run(path: pathlib.Path) -> None:
    """Every dtype, shape and content that is stated is what the engine computes."""
    given = feeds(path)
    if given is None:
        pytest.skip("no inputs beside the model")
    model = load(path)

    assert complaints(model, given, observed(model, given)) == []


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_inference_is_quick(path: pathlib.Path) -> None:
    """All values take less than half a millisecond a node: five times what a quiet machine needs."""
    model = load(path)
    facts = Facts(model)
    started = time.process_time()
    count = 0
    for node in model.graph.all_nodes():
        count += 1
        for value in node.outputs:
            facts.of(value)

    assert time.process_time() - started < 0.5 + 5e-4 * count
