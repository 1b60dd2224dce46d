"""Views of arguments that are kept: right for what comes, made anew for what moved alone, and never beyond their tensor."""

from __future__ import annotations

import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_core.runtime.kept import KeptViews
from fusion_core.runtime.steps import flat_view


class Maker:
    """Makes flat views, and notes of which tensors."""

    def __init__(self):
        self.made = []

    def __call__(self, tensor):
        self.made.append(id(tensor))
        return flat_view(tensor)

    def of(self, *tensors):
        """True if views were made of these since the last look."""
        made, self.made = self.made, []
        return made == [id(t) for t in tensors]


def shows(view, tensor):
    """True if a view is the tensor in one dimension."""
    return view.data_ptr() == tensor.data_ptr() and view.shape == (tensor.numel(),)


def test_only_what_moved_is_made_anew():
    make = Maker()
    kept = KeptViews([(0, make), (2, make), (1, make)])
    a, b, c, d = (torch.randn(2, 3) for _ in range(4))
    first = kept.of([a, b, c])
    assert make.of(a, c, b)
    assert all(map(shows, first, (a, c, b)))
    assert kept.of([a, b, c]) is first
    assert make.of()
    second = kept.of([a, d, c])
    assert make.of(d)
    assert second[:2] == first[:2]
    assert shows(second[2], d)
    assert shows(first[2], b)  # a call that is under way keeps what it began with
    a.data = torch.randn(2, 3)
    assert shows(kept.of([a, d, c])[0], a)
    assert make.of(a)


def test_another_tensor_object_with_the_same_memory_is_looked_at():
    make = Maker()
    kept = KeptViews([(0, make)])
    a = torch.randn(2, 3)
    kept.of([a])
    kept.of([a.detach()])
    assert len(make.made) == 2


def test_a_view_goes_with_its_tensor_and_leaves_the_others():
    make = Maker()
    kept = KeptViews([(0, make), (1, make)])
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    first = weakref.ref(kept.of([a, b])[0])
    old = id(a)
    del a
    assert first() is None
    assert make.made == [old, id(b)]
    make.made = []
    c = torch.randn(2, 3)
    assert shows(kept.of([c, b])[0], c)
    assert make.of(c)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["new", "moved", "again", "gone"])), max_size=12)
)
def test_views_are_those_of_what_is_passed(events):
    """Whatever is replaced, moved or forgotten between calls."""
    kept = KeptViews([(2, flat_view), (0, flat_view), (1, flat_view)])
    arguments = [torch.randn(2, 3) for _ in range(3)]
    kept.of(arguments)
    for position, event in events:
        if event == "new":
            arguments[position] = torch.randn(2, 3)
        elif event == "moved":
            arguments[position].data = torch.randn(2, 3)
        elif event == "gone":
            arguments[position] = None
            arguments[position] = torch.randn(2, 3)
        views = kept.of(list(arguments))
        assert all(map(shows, views, (arguments[2], arguments[0], arguments[1])))
