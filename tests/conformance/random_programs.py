"""Random straight-line programs over views, in-place operators, aliased inputs and mixed dtypes, as source text.

A program is drawn statement by statement, and each statement is run in eager as it is drawn: one that eager refuses is left
out. So nearly every program that comes out runs, and shrinking leaves programs that run.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

SETUP = "import torch\n"
# Inputs that need no gradient are written; so that both kinds occur together, each input draws its own.
_DTYPES = (
    "torch.float32",
    "torch.float32",
    "torch.float32",
    "torch.float64",
    "torch.int64",
    "torch.bool",
    "torch.bfloat16",
)
_BASES = {
    "row": "torch.arange(12.0)",
    "square": "torch.arange(9.0).reshape(3, 3)",
    "tall": "torch.arange(12.0).reshape(4, 3)",
    "block": "torch.arange(24.0).reshape(2, 3, 4)",
    "one": "torch.arange(1.0)",
    "scalar": "torch.tensor(2.0)",
}
_VIEWS = (
    "{a}[1:]", "{a}[:-1]", "{a}[::2]", "{a}[0]", "{a}[..., 0]", "{a}[..., 1:]", "{a}.t()", "{a}.view(-1)", "{a}.flatten()",
    "{a}.unsqueeze(0)", "{a}.squeeze()", "{a}.transpose(0, -1)", "{a}.detach()", "{a}.view_as({a})", "{a}.diagonal()",
    "{a}.expand(2, *{a}.shape)", "{a}.unfold(0, 2, 1)", "{a}.unfold(0, 2, 3)", "{a}.chunk(2)[0]", "{a}.narrow(0, 0, 1)",
    "{a}.split(2)[-1]", "{a}.view(3, -1)", "{a}.as_strided((2, 2), (1, 2), 1)", "{a}.unbind(0)[-1]", "{a}.mT", "{a}.real",
    "{a}.movedim(0, -1)", "{a}.select(-1, -1)",
)  # fmt: skip
_PURE = (
    "{a} + {b}", "{a} * {b}", "{a} - 1", "2 * {a}", "{a} / 3", "{a}.clone()", "{a}.exp()", "{a}.tanh()", "{a}.relu()", "{a}.abs()",
    "{a}.sum()", "{a}.sum(0)", "{a}.mean(-1, keepdim=True)", "{a}.amax(0)", "{a}.float()", "{a}.double()", "{a}.long()",
    "{a} > {b}", "torch.where({a} > 1, {a}, {b})", "torch.maximum({a}, {b})", "{a}.softmax(-1)", "{a}.contiguous()",
    "torch.cat([{a}, {b}])", "torch.stack([{a}, {a}])", "{a}.flip(0)", "{a}.cumsum(0)", "{a}.var(0)", "{a}.bfloat16()",
    "{a} @ {b}", "{a}.reshape(-1)", "torch.zeros_like({a})", "{a}.new_ones(3)", "{a}.sigmoid()", "{a}.to({b}.dtype)", "{a}.argmax()",
    "{a}.gather(0, torch.zeros_like({a}, dtype=torch.int64))", "torch.nn.functional.dropout({a}, 0.0)", "{a}.type_as({b})",
    "{a}.pow(2)", "torch.lerp({a}, {b}, 0.5)", "{a}.clamp(0.5, 2)", "torch.nn.functional.pad({a}, (1, 0))",
)  # fmt: skip
_IN_PLACE = (
    "{a}.add_({b})", "{a}.mul_(2)", "{a}.copy_({b})", "{a}.zero_()", "{a}.fill_(3)", "{a}.relu_()", "{a}.neg_()", "{a}.sub_(1)",
    "{a}[0] = {b}", "{a}[1:] = {b}", "{a}[..., 0] = 7", "{a}.lerp_({b}, 0.25)", "{a} += {b}", "{a} *= 2", "{a}.masked_fill_({a} > 2, 0)",
    "{a}.addcmul_({b}, {b}, value=0.5)", "{a}.clamp_(min=1)", "{a}.transpose_(0, -1)", "{a}.unsqueeze_(0)", "{a}.t_()",
    "{a}.index_fill_(0, torch.tensor([0], device={a}.device), 5)", "{a}.scatter_(0, torch.zeros_like({a}, dtype=torch.int64), 4)", "{a}.squeeze_()",
    "{a}.index_add_(0, torch.tensor([0], device={a}.device), {b})", "torch.add({a}, {b}, out={a})", "torch.exp({b}, out={a})", "{a}.sigmoid_()",
    "torch._foreach_add_([{a}, {b}], 1)", "{a}.set_({b})", "{a}.data.mul_(3)", "{a}.data = {b}.detach()", "{a}.pow_(2)",
    "torch.nn.functional.relu({a}, inplace=True)", "{a}.cumsum_(0)", "{a}.index_put_((torch.tensor([0], device={a}.device),), {b})", "{a}.div_(2)",
    "torch.nn.functional.dropout({a}, 0.5, False, True)",
)  # fmt: skip
_RARE = frozenset({"{a}.set_({b})", "{a}.data = {b}.detach()", "{a}.data.mul_(3)"})


@dataclass(frozen=True)
class Source:
    """A program as text: `make` builds its inputs, `program` runs on them."""

    make: str
    program: str

    def functions(self):
        """Returns `program` and `make`, which are compiled from the text."""
        names: dict = {}
        exec(compile(SETUP + self.make + self.program, "<random program>", "exec"), names)
        return names["program"], names["make"]

    def as_test(self, failure: str = "") -> str:
        """Returns a test that can be pasted into a file."""
        lines = [f"# {line}" for line in textwrap.wrap(failure, 116)]
        return "\n".join(
            [
                *lines,
                SETUP,
                self.program,
                self.make,
                "def test_found():",
                "    assert_equal(program, make)",
                "",
            ]
        )


@st.composite
def sources(draw, most_steps=12):
    """Draws a program of 3 to `most_steps` statements."""
    build, names, env = _inputs(draw)
    inputs = ", ".join(names)
    body: list[str] = []
    steps = draw(st.integers(3, most_steps))
    for step in range(steps):
        kind = draw(st.sampled_from(("view", "pure", "write", "write")))
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        templates = {"view": _VIEWS, "pure": _PURE, "write": _IN_PLACE}[kind]
        template = draw(st.sampled_from(templates))
        if template in _RARE and not draw(st.booleans()):
            continue
        statement = template.format(a=a, b=b)
        made = f"v{step}"
        text = statement if kind == "write" else f"{made} = {statement}"
        if not _is_defined(text, template, a, b, env) or not _runs(text, env):
            continue
        body.append(text)
        if kind != "write" and isinstance(env.get(made), torch.Tensor):
            names.append(made)
    returned = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
    lines = [*body, f"return {', '.join(returned)},"]
    program = f"def program({inputs}):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
    return Source(build, program)


def _inputs(draw):
    """Draws one to three inputs, which may be views of one base."""
    lines, names = [], []
    count = draw(st.integers(1, 3))
    for position in range(count):
        name = f"x{position}"
        shared = names and draw(st.booleans())
        if shared:
            expression = draw(st.sampled_from(_VIEWS)).format(a=draw(st.sampled_from(names)))
            line = f"{name} = {expression}"
        else:
            base, dtype = _BASES[draw(st.sampled_from(sorted(_BASES)))], draw(st.sampled_from(_DTYPES))
            line = f"{name} = {base}.to({dtype})"
            if dtype.startswith("torch.float") and draw(st.integers(0, 3)) == 0:
                line += ".requires_grad_()"
        env: dict = {}
        if not _runs("\n".join([*lines, line]), env) or not isinstance(env[name], torch.Tensor):
            line = f"{name} = torch.arange(12.0)"
        lines.append(line)
        names.append(name)
    env = {}
    _runs("\n".join(lines), env)
    build = (
        "def make():\n" + textwrap.indent("\n".join([*lines, f"return {', '.join(names)},"]), "    ") + "\n"
    )
    return build, names, {name: env[name] for name in names}


def _is_defined(text: str, template: str, a: str, b: str, env: dict) -> bool:
    """False where a write reads memory that it writes at other places: eager's result depends on the order of its loop."""
    if template not in _IN_PLACE or not isinstance(env.get(b), torch.Tensor):
        return True
    try:
        with torch.no_grad():
            written, operand = env[a].detach(), env[b].detach()
            if written.untyped_storage().data_ptr() != operand.untyped_storage().data_ptr() or a == b:
                return True
            apart: dict = {a: written.clone(), b: operand.clone(), "torch": torch}
            exec(template.format(a=a, b=b), apart)
            together: dict = {"torch": torch}
            base = torch.empty(0, dtype=written.dtype).set_(written.untyped_storage().clone())
            together[a] = base.as_strided(written.shape, written.stride(), written.storage_offset())
            together[b] = base.as_strided(operand.shape, operand.stride(), operand.storage_offset())
            exec(template.format(a=a, b=b), together)
            return bool(torch.equal(apart[a].nan_to_num(), together[a].nan_to_num()))
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NotImplementedError):
        return True  # the program's own run tells


def _runs(text: str, env: dict) -> bool:
    """Runs a statement in eager; False where eager refuses it, or where it makes numbers that no comparison can use."""
    env["torch"] = torch
    try:
        exec(text, env)
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NotImplementedError):
        return False
    return True
