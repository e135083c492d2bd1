"""Random graphs stay what they were when they are simplified. ``random_simplify.py`` runs many more."""

import onnx
import onnx_ir as ir
import pytest

from graphdoc.surgeon.simplify import simplify
from tests.engine.random_graphs import random_graph
from tests.surgeon.random_simplify import Tally, check


@pytest.mark.parametrize("part", range(4))
def test_outputs_stay_what_they_were(part: int) -> None:
    """Sixty graphs of up to 30 nodes in each part, on three sets of inputs each."""
    tally = Tally()
    for number in range(part * 60, part * 60 + 60):
        model, feeds = random_graph(f"simplify/{number}")
        assert not check(model, feeds, tally, ort=number % 4 == 0), f"simplify/{number}"
    assert tally.after < 0.8 * tally.before


def test_the_callers_message_is_left_alone() -> None:
    """onnx_ir writes new names of initializers into the messages it was given."""
    for number in range(40):
        model, _ = random_graph(f"names/{number}")
        before = model.SerializeToString()
        simplify(ir.from_proto(model))
        assert model.SerializeToString() == before
    assert isinstance(model, onnx.ModelProto)
