"""Whether arguments lie apart is told without looking at all of them again."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fusion_core
from fusion_core import overlap
from fusion_core.overlap import Apart, addresses_of, overlap_pattern

SHAPES = ((4,), (2, 3), (1,), (0,), (3, 2))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(SHAPES), min_size=2, max_size=5),
    st.data(),
)
def test_nothing_that_overlaps_counts_as_apart(shapes, data):
    room = torch.zeros(60)
    written = frozenset(data.draw(st.sets(st.integers(0, len(shapes) - 1), min_size=1)))

    def placed(starts):
        return tuple(
            room.as_strided(s, torch.empty(s).stride(), b) for s, b in zip(shapes, starts, strict=True)
        )

    first = placed(range(0, 12 * len(shapes), 12))
    apart = Apart(first, addresses_of(first), written)
    assert apart.is_still(addresses_of(first))
    for _ in range(3):
        later = placed(data.draw(st.lists(st.integers(0, 50), min_size=len(shapes), max_size=len(shapes))))
        is_apart = not overlap_pattern(later, written).places
        said = apart.is_still(addresses_of(later))
        assert is_apart or not said
        # dense tensors overlap where their extents do, and those that moved are all looked at
        assert said or not is_apart or any(not t.numel() for t in later)


def test_numbers_and_memory_that_is_not_there_take_a_closer_look():
    x, y = torch.zeros(3), torch.zeros(3)
    apart = Apart((x, y, 5), [*addresses_of((x, y)), 5], frozenset({0}))
    start = x.data_ptr(), y.data_ptr()
    assert not apart.is_still([*start, 6])
    assert not apart.is_still([0, start[1], 5])
    assert apart.is_still([*start, 5])


def test_many_that_moved_take_a_closer_look():
    many = [torch.zeros(2) for _ in range(40)]
    apart = Apart(many, addresses_of(many), frozenset(range(40)))
    assert not apart.is_still(addresses_of([torch.zeros(2) for _ in range(40)]))


def test_overlap_that_comes_after_many_calls_apart_is_seen(monkeypatch):
    looks = []
    original = overlap.overlap_pattern
    monkeypatch.setattr("fusion_core.backend.overlap_pattern", lambda *a: looks.append(1) or original(*a))

    def function(x, acc):
        acc.mul_(2)
        return x + 1

    compiled = fusion_core.compile(function)
    acc, room = torch.ones(4), torch.arange(12.0)
    held = [torch.full((4,), float(i)) for i in range(6)]
    for x in held:
        assert torch.equal(compiled(x, acc), x + 1)
    assert torch.equal(acc, torch.full((4,), 64.0))
    assert len(looks) == 1
    for first in (6, 2, 4, 0):  # the written part is [4, 8)
        ours, theirs = room.clone(), room.clone()
        found = compiled(ours[first : first + 4], ours[4:8])
        assert torch.equal(found, function(theirs[first : first + 4], theirs[4:8]))
        assert torch.equal(ours, theirs)
    assert len(looks) >= 4
