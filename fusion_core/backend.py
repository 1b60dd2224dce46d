"""The torch.compile entry, and the one function that names the stages of a compilation in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, strided
from torch.fx import Graph, GraphModule, Node

from fusion_core.alias import AliasFacts, analyze, is_free
from fusion_core.capture import AotRefusalError, Captured, Compiled, compile_through_aot, foreign
from fusion_core.collection import without_collection
from fusion_core.components import Component
from fusion_core.errors import FallbackError, OptionError
from fusion_core.examine import GraphReport, count_kernels, count_regions
from fusion_core.executors import nvfuser
from fusion_core.executors.base import Kernel
from fusion_core.kernels import KernelCache
from fusion_core.lowering.build import lower
from fusion_core.lowering.packing import Packed, pack
from fusion_core.lowering.reuse import reuse_buffers
from fusion_core.lowering.support import WHOLE_GRAPH, Unsupported, refusal
from fusion_core.options import Options, parse_options
from fusion_core.overlap import Apart, Pattern, addresses_of, overlap_pattern, refuse_freed
from fusion_core.partition import COPY_, Kinds, partition
from fusion_core.passes.dce import remove_dead_code
from fusion_core.passes.drop_identities import drop_identities, once_each
from fusion_core.passes.expand_foreach import expand_foreach
from fusion_core.passes.expand_one_hot import expand_one_hot
from fusion_core.passes.hoist_copies import hoist_copies
from fusion_core.passes.inline_scalars import inline_scalars
from fusion_core.passes.normalize_copies import normalize_copies
from fusion_core.passes.reinplace import reinplace
from fusion_core.passes.snapshot import snapshot_outputs
from fusion_core.passes.split_moments import split_moments
from fusion_core.program.ir import FusionProgram
from fusion_core.replay.obstacle import obstacle
from fusion_core.replay.replay import Replay
from fusion_core.runtime.plan import Plan, build_plan
from fusion_core.runtime.steps import Free
from fusion_core.runtime.straight import straight_line
from fusion_core.runtime.tangents import with_traced_bits

Record = Callable[[GraphReport], None]
Run = Callable[[list[Any]], Any]
Watch = Callable[[Captured, Graph, Plan], Run]

_MOST_ADDRESSES = 256  # lists of addresses whose overlap is remembered


def fusion_core(
    module: GraphModule,
    example_inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a Dynamo graph: `torch.compile(fn, backend="fusion_core", options={...})`.

    Raises OptionError for unknown options and modes, FallbackError where `fallback="error"` and something would run
    eager. See `fusion_core.Options`.
    """
    parsed = parse_options(options, mode)
    if parsed.executor == "nvfuser" and nvfuser.unavailable():
        raise OptionError(f"executor='nvfuser': {nvfuser.unavailable()}")
    return CompiledGraph(module, example_inputs, parsed)


class CompiledGraph:
    """A Dynamo graph with one plan for each way in which its written inputs overlap others.

    Dynamo does not guard on overlap, so the plan compiled for separate tensors would be called with views of one.
    """

    def __init__(
        self,
        module: GraphModule,
        example_inputs: list[Any],
        options: Options,
        record: Record | None = None,
        watch: Watch | None = None,
    ) -> None:
        drop_identities(module)
        self._places = once_each(module)
        self._repeats = self._places != tuple(range(len(self._places)))
        self._module = module
        self._resizes = any("resize_storage" in str(node.target) for node in module.graph.nodes)
        self._options = options
        self._record = record
        self._reports: list[GraphReport] = []
        self._watch = watch
        self._kernels = KernelCache(options)
        self._plans: dict[tuple[Pattern, Any], Callable[..., Any]] = {}
        self._first_pattern: Pattern | None = None
        self._is_checked = self._runs_eager = False
        self._first = self._compile(example_inputs)
        self._addresses: list[Any] = []
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._apart: tuple[Apart, Callable[..., Any]] | None = None
        self._current = self._first.call

    def __call__(self, *arguments: Any) -> Any:
        """Runs the plan for the overlap of these arguments, compiling it if it is new."""
        if self._repeats:
            values = self._run(*arguments)
            return tuple(values[place] for place in self._places)
        return self._run(*arguments)

    def _run(self, *arguments: Any) -> Any:
        if not self._is_checked:
            self._check(arguments)
        if self._runs_eager:
            return self._module(*arguments)
        if not self._first.written:
            return self._first.call(*arguments)
        addresses = addresses_of(arguments)
        if addresses != self._addresses:
            self._current = self._plan_at(tuple(addresses), arguments)
            self._addresses = addresses
        return self._current(*arguments)

    def _plan_at(self, addresses: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """Dynamo guards on sizes and strides, so that addresses tell that nothing overlaps.

        Where something does, the plan also depends on whose storage it is.
        """
        known = self._known.get(addresses)
        if known is not None:
            return known
        if self._apart is not None and self._apart[0].is_still(addresses):
            return self._apart[1]
        if not self._resizes:
            refuse_freed(arguments, self._first.written)
        pattern = overlap_pattern(arguments, self._first.written)
        plan = self._plan_for(arguments, pattern)
        if not pattern.places:
            if len(self._known) >= _MOST_ADDRESSES:
                self._known.clear()
            self._known[addresses] = plan
            self._apart = Apart(arguments, addresses, self._first.written), plan
        return plan

    def _check(self, arguments: tuple[Any, ...]) -> None:
        """Looks at the tensors of the first call for what the fake ones do not tell; Dynamo guards on it from then on."""
        self._is_checked = True
        reason = next(filter(None, map(foreign, arguments)), "")
        if reason and self._options.fallback == "error":
            raise FallbackError(f"an input is {reason}, which AOTAutograd does not compile")
        if reason:
            self._runs_eager = True
            whole = Unsupported(WHOLE_GRAPH, f"an input is {reason}", "")
            self._note(GraphReport("inference", (), (whole,), (), not_replayed="the whole graph runs eager"))

    def _plan_for(self, arguments: tuple[Any, ...], pattern: Pattern) -> Callable[..., Any]:
        if self._first_pattern is None:
            self._first_pattern = (
                pattern  # the first call passes the arguments that the first plan was compiled for
            )
        if pattern == self._first_pattern:
            return self._usable(self._first, pattern)
        key = (pattern, _geometry_key(arguments))  # compiled from real sizes, so it serves these sizes only
        if key not in self._plans:
            self._plans[key] = self._usable(self._compile(list(arguments)), pattern)
        return self._plans[key]

    def _usable(self, compiled: Compiled, pattern: Pattern) -> Callable[..., Any]:
        """Returns eager for overlap that the capture did not see."""
        blind = bool(pattern.places) and (pattern.foreign or not compiled.merged)
        return self._module if blind else compiled.call

    def _compile(self, example_inputs: list[Any]) -> Compiled:
        try:
            return compile_through_aot(
                self._module,
                example_inputs,
                self._compile_graph,
                fuses_random=self._options.rng == "fused",
            )
        except AotRefusalError as error:
            if self._options.fallback == "error":
                raise FallbackError(f"AOTAutograd refuses the graph: {error}") from error
            whole = Unsupported(WHOLE_GRAPH, f"AOTAutograd refuses it: {str(error)[:200]}", "")
            self._note(GraphReport("inference", (), (whole,), (), not_replayed="the whole graph runs eager"))
            return Compiled(self._module)

    def _compile_graph(self, captured: Captured) -> Run:
        with without_collection():  # tracing leaves millions of objects
            run, report = compile_graph(captured, self._options, self._kernels, self._watch)
        self._note(report)
        return run

    def _note(self, report: GraphReport) -> None:
        self._reports.append(report)
        if self._record is not None:
            self._record(report)

    @property
    def fusion_counts(self) -> tuple[int, int]:
        """Regions and distinct compiled programs so far; graphs of backward are compiled late."""
        return count_regions(self._reports), count_kernels(self._reports)


def _geometry_key(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        (a.shape, a.stride() if a.layout is strided else a.layout) if isinstance(a, Tensor) else a
        for a in arguments
    )


def compile_graph(
    captured: Captured, options: Options, kernels: KernelCache, watch: Watch | None = None
) -> tuple[Run, GraphReport]:
    """Returns what runs one aten graph, and the report on it: the stages of a compilation in order.

    `watch` gets the plan with what it was made from, and returns what runs it in its place.
    """
    clock = _Clock()
    graph = inline_scalars(captured.module.graph, partial(_attribute, captured.module))
    graph = expand_one_hot(split_moments(expand_foreach(graph)))
    graph = normalize_copies(graph)
    clock.stage("expand")
    graph, facts = _rewritten(graph, analyze(graph), partial(snapshot_outputs, rebuilt=captured.rebuilt))
    graph, facts = _rewritten(graph, facts, partial(reinplace, rebuilt=captured.rebuilt))
    graph, facts = _rewritten(graph, facts, remove_dead_code)
    graph, facts = _rewritten(graph, facts, hoist_copies)
    clock.stage("order")
    refusals = {
        n: refusal(n, fuses_random=options.rng == "fused") for n in graph.nodes if n.op == "call_function"
    }
    steps = partition(graph, facts, _kinds(refusals)).steps
    clock.stage("partition")
    fresh = _fresh_classes(graph.output_node(), facts.storage, captured.rebuilt)
    lowered = [
        lower(s, facts, fresh, bookend=options.bookend) if isinstance(s, Component) else s for s in steps
    ]
    clock.stage("lowering")
    packed = reuse_buffers(pack(lowered), graph, facts, kernels.writing_devices)
    used: dict[FusionProgram, None] = {}

    def kernel(program: FusionProgram, device: str) -> Kernel:
        used[program] = None
        return kernels.kernel(program, device)

    plan = build_plan(
        graph,
        packed,
        kernel,
        partial(_attribute, captured.module),
        guarded=captured.kind != "backward",
    )
    clock.stage("kernels")
    left = [refusals[s] for s in lowered if isinstance(s, Node) and _counts_as_eager(s)]
    eager = tuple(refused for refused in left if refused is not None)
    if eager and options.fallback == "error":
        raise FallbackError(f"{eager[0].operator} ({eager[0].line}) would run eager: {eager[0].reason}")
    members = (s.members if isinstance(s, Packed) else (s,) for s in packed if not isinstance(s, Node))
    components = tuple(lowered for each in members for lowered in each)
    shared = sum(len(step.members) for step in packed if isinstance(step, Packed))
    not_replayed = _not_replayed(graph, captured, plan, options)
    run: Run = straight_line(plan) if not_replayed else _replay(graph, facts, plan, options, captured).run
    if watch is not None:
        run = watch(captured, graph, plan)
    if captured.kind == "backward":
        run = with_traced_bits(run, graph)
    return run, GraphReport(
        captured.kind, components, eager, tuple(clock.seconds), tuple(used), shared, not_replayed
    )


def _not_replayed(graph: Graph, captured: Captured, plan: Plan, options: Options) -> str:
    """Returns why the plan is not replayed as a CUDA graph, or an empty string."""
    if options.graphs is False:
        return "graphs=False"
    steps = sum(not isinstance(step, Free) for step in plan.steps)
    asked = options.graphs is True
    return obstacle(graph, captured.kind, steps=steps, asked=asked, rebuilt=captured.rebuilt)


def _replay(graph: Graph, facts: AliasFacts, plan: Plan, options: Options, captured: Captured) -> Replay:
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    written = frozenset(i for i, n in enumerate(placeholders) if facts.writes.get(facts.storage.get(n, "")))
    device = next(t.device for n in placeholders if isinstance(t := n.meta.get("val"), Tensor))
    lent_from = captured.saved_from if captured.lends else None
    return Replay(plan, written, device, copies=options.graphs is True, lent_from=lent_from)


def _rewritten(
    graph: Graph, facts: AliasFacts, rewrite: Callable[[Graph, AliasFacts], Graph]
) -> tuple[Graph, AliasFacts]:
    """Returns the rewritten graph and its facts, which are the old ones where nothing changed."""
    new = rewrite(graph, facts)
    return new, facts if new is graph else analyze(new)


def _fresh_classes(
    output: Node, storage: Mapping[Node, int | str], rebuilt: frozenset[int]
) -> frozenset[int | str]:
    """Storage classes of outputs that must be memory of their own: all but those that the host rebuilds from inputs."""
    values = output.args[0]
    assert isinstance(values, (tuple, list))
    return frozenset(storage[v] for i, v in enumerate(values) if isinstance(v, Node) and i not in rebuilt)


def _kinds(refusals: Mapping[Node, Unsupported | None]) -> Kinds:
    """Returns which nodes can be lowered: as computation, or as a view inside a program."""
    accepted = [n for n, refused in refusals.items() if refused is None]
    return Kinds(
        fusible=frozenset(n for n in accepted if not is_free(n)),
        views=frozenset(n for n in accepted if is_free(n)),
    )


def _counts_as_eager(node: Node) -> bool:
    """Views and tuple access move no data, so they are no work left to eager."""
    return not is_free(node) and (
        isinstance(node.meta.get("val"), (Tensor, list, tuple)) or node.target is COPY_
    )


def _attribute(module: GraphModule, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


class _Clock:
    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []
        self._last = time.perf_counter()

    def stage(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds.append((name, now - self._last))
        self._last = now
