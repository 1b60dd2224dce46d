"""What Dynamo notes while it compiles: graph breaks and failed guards."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch._dynamo.config
import torch._dynamo.utils as dynamo

if TYPE_CHECKING:
    from collections.abc import Iterator

_REASON_LENGTH = 200


class DynamoNotes:
    """Breaks and recompilations in this process since the object was made."""

    def __init__(self) -> None:
        self._breaks = Counter(dynamo.counters["graph_break"])
        self._known = list(dynamo.get_compilation_metrics())  # held, so that no identity is used twice

    @property
    def graph_breaks(self) -> tuple[str, ...]:
        """One line for each graph break."""
        new = Counter(dynamo.counters["graph_break"]) - self._breaks
        return tuple(_line(reason) for reason in new.elements())

    @property
    def recompile_reasons(self) -> tuple[str, ...]:
        """The failed guard of each recompilation."""
        reasons = (getattr(m, "recompile_reason", None) for m in self._new())
        return tuple(_line(reason) for reason in reasons if reason)

    @property
    def compilations(self) -> int:
        """Frames compiled."""
        return len(self._new())

    def _new(self) -> list[Any]:
        known = {id(m) for m in self._known}
        return [m for m in dynamo.get_compilation_metrics() if id(m) not in known]


def _line(reason: str) -> str:
    return " ".join(reason.split())[:_REASON_LENGTH]


def generated_kernels() -> int | None:
    """Kernels that inductor has generated in this process; None where it was never loaded."""
    metrics = sys.modules.get("torch._inductor.metrics")
    return None if metrics is None else int(metrics.generated_kernel_count)


@contextlib.contextmanager
def loud_limit() -> Iterator[None]:
    """Makes Dynamo raise where it would run eager from now on, since it has compiled too often."""
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


@contextlib.contextmanager
def cold_caches() -> Iterator[None]:
    """Empty disk caches for inductor and triton while the block runs."""
    import torch._inductor.utils as inductor

    fresh = getattr(inductor, "fresh_cache", None) or inductor.fresh_inductor_cache
    with fresh():
        yield
