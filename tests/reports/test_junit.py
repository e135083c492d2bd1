"""JUnit XML: counts that add up, valid XML whatever the names."""

import xml.etree.ElementTree as ET

import pytest

from graphdoc.reports.junit import MOST_LAYERS, render_junit
from tests.reports.synthetic import OUTCOMES, comparison


def suite_of(outcome: str, layers: int = 20, *, hostile: bool = False) -> ET.Element:
    text = render_junit(comparison(outcome, layers, hostile=hostile))
    root = ET.fromstring(text.encode("utf-8"))  # noqa: S314 - our own text
    (suite,) = root
    assert root.tag == "testsuites"
    return suite


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_counts_add_up(outcome, hostile):
    suite = suite_of(outcome, 60, hostile=hostile)
    cases = suite.findall("testcase")
    assert int(suite.get("tests")) == len(cases)
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
    assert int(suite.get("errors")) == len(suite.findall("testcase/error"))
    assert cases[0].get("name") == "verdict"
    names = [case.get("name") for case in cases]
    assert len(set(names)) == len(names)


def test_differs_fails_the_verdict_and_each_layer():
    suite = suite_of("differs")
    verdict, own, *inherited = suite.findall("testcase")
    failure = verdict.find("failure")
    assert failure.get("message") == "Differs from #17 of 20 on; B is wrong, by this layer's own error"
    assert failure.get("type") == "own"
    assert "next       graphdoc reduce encoder.w16.onnx" in failure.text
    assert own.get("name") == "#17 Div /encoder/layers.1/block.5/Div"
    assert own.find("failure").get("message") == "own error 0.81, limit 0.0034"
    assert [case.find("failure").get("type") for case in inherited] == ["inherited", "inherited"]


@pytest.mark.parametrize("outcome", ["agrees", "ties", "remark", "outputs only"])
def test_a_good_verdict_fails_nothing(outcome):
    suite = suite_of(outcome, 60)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "0")


@pytest.mark.parametrize("outcome", ["nothing", "one side"])
def test_what_could_not_be_compared_is_an_error(outcome):
    suite = suite_of(outcome)
    assert suite.get("errors") == "1"
    assert suite.find("testcase/error") is not None


def test_the_layer_that_is_wrong_has_its_case_among_too_many():
    suite = suite_of("differs", 5000)
    assert int(suite.get("tests")) == MOST_LAYERS + 1
    assert any(f.get("type") == "own error" for f in suite.iter("failure"))
    assert suite.find("system-out").text == "301 more layers differ; the JSON lists all of them."


def test_figures_are_properties():
    figures = {p.get("name"): p.get("value") for p in suite_of("differs").iter("property")}
    assert figures["verdict"] == "own"
    assert (figures["layers"], figures["differ"], figures["skipped"]) == ("20", "3", "6")
    assert figures["A.runner"] == "ort 1.20.0"
    assert figures["B.latency"] == "30.6 ms"
    assert figures["seed"] == "0"
