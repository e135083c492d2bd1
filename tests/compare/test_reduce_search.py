"""Delta debugging: the smallest failing part, few questions."""

from hypothesis import given
from hypothesis import strategies as st

from graphdoc.compare.reduce_search import Search


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4))
    )
)
def test_exactly_the_needed_nodes_are_left(case: tuple[int, set[int]]) -> None:
    """A part fails when it holds all needed nodes: then the answer is those, whatever else there is."""
    count, needed = case
    search = Search(lambda part: needed <= set(part))

    assert search.minimal(range(count)) == tuple(sorted(needed))


@given(
    st.integers(2, 24).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.sets(st.integers(0, n - 1), min_size=1, max_size=3), min_size=1, max_size=3),
        )
    )
)
def test_no_node_of_the_result_can_be_left_out(case: tuple[int, list[set[int]]]) -> None:
    """Where several sets of nodes fail, the answer need not be the smallest, but it is minimal."""
    count, ways = case

    def fails(part: tuple[int, ...]) -> bool:
        return any(way <= set(part) for way in ways)

    found = Search(fails).minimal(range(count))

    assert fails(found)
    assert not any(fails(found[:i] + found[i + 1 :]) for i in range(len(found)))


def test_a_single_node_of_a_thousand_takes_few_questions() -> None:
    search = Search(lambda part: 617 in part)

    assert search.minimal(range(1000)) == (617,)
    assert search.runs <= 30


def test_a_bound_on_questions_gives_the_smallest_part_so_far() -> None:
    needed = set(range(0, 300, 3))
    search = Search(lambda part: needed <= set(part), most=50)

    found = search.minimal(range(300))

    assert needed <= set(found)
    assert search.exhausted
    assert search.runs == 50


def test_the_same_part_is_asked_of_once() -> None:
    asked: list[tuple[int, ...]] = []

    def fails(part: tuple[int, ...]) -> bool:
        asked.append(part)
        return {2, 9} <= set(part)

    Search(fails).minimal(range(12))

    assert len(asked) == len(set(asked))
