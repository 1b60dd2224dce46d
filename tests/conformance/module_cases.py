"""Every module of torch's module database and every optimizer of its optimizer database, as programs."""

from __future__ import annotations

import copy
import itertools
import warnings
from dataclasses import dataclass, replace

import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

from pytest_fusealias.build import Program

MODULES = {info.name: info for info in module_db}
OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db}
STEPS = 3


@dataclass(frozen=True)
class ModuleCase:
    """Inputs `first` to `last` (exclusive) of a module, in training or evaluation mode; forward and backward."""

    name: str
    training: bool
    first: int = 0
    last: int = 10**6
    train: bool | None = None  # backward is run where an output requires grad

    @property
    def key(self) -> str:
        """A name that stays."""
        return f"{self.name}/{'train' if self.training else 'eval'}/{self.first}-{self.last}"

    def counted(self, device: str) -> ModuleCase:
        """The same with its real number of inputs."""
        torch.manual_seed(0)
        return replace(self, last=min(self.last, self.first + len(self._inputs(device))))

    def singles(self) -> list[ModuleCase]:
        """The same inputs, one a case."""
        return [replace(self, first=n, last=n + 1) for n in range(self.first, self.last)]

    def build(self, device: str) -> Program:
        """Builds one module for each input."""
        info, made = MODULES[self.name], []
        for given in self._inputs(device):
            module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
            module.to(device, torch.float32).train(self.training)
            made.append((module, given.forward_input.args, given.forward_input.kwargs))

        def call_each(each):
            return [module(*args, **kwargs) for module, args, kwargs in each]

        return Program(call_each, (made,))

    def _inputs(self, device: str) -> list:
        info = MODULES[self.name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = info.module_inputs_func(
                info, device=device, dtype=torch.float32, requires_grad=True, training=self.training
            )
            made = [m for m in made if m.forward_input is not None]
        return list(itertools.islice(made, self.first, self.last))


@dataclass(frozen=True)
class OptimizerCase:
    """Settings `first` to `last` (exclusive) of an optimizer, in one of its implementations; three steps."""

    name: str
    implementation: str
    first: int = 0
    last: int = 10**6
    train: bool = False

    @property
    def key(self) -> str:
        """A name that stays."""
        return f"{self.name}/{self.implementation}/{self.first}-{self.last}"

    def counted(self, device: str) -> OptimizerCase:
        """The same with its real number of settings."""
        return replace(self, last=min(self.last, self.first + len(self._settings(device))))

    def singles(self) -> list[OptimizerCase]:
        """The same settings, one a case."""
        return [replace(self, first=n, last=n + 1) for n in range(self.first, self.last)]

    def build(self, device: str) -> Program:
        """Builds an optimizer for each setting; the program makes three steps of all of them."""
        info = OPTIMIZERS[self.name]
        optimizers = [self._optimizer(info, settings, device) for settings in self._settings(device)]

        def step():
            for optimizer, closure in optimizers:
                optimizer.step(closure) if closure is not None else optimizer.step()

        def three_steps(call):
            for _ in range(STEPS):
                call()

        return Program(step, state=optimizers, drive=three_steps)

    def _optimizer(self, info, settings, device):
        parameters = [
            torch.nn.Parameter(torch.rand(shape, device=device)) for shape in ((4, 3), (5,), (2, 2))
        ]
        for p in parameters:
            p.grad = torch.rand_like(p)
        kwargs = copy.deepcopy(settings) | {self.implementation: True}
        kwargs.pop("forloop", None)
        optimizer = info.optim_cls(parameters, **kwargs)

        def closure():
            return sum((p * p).sum() for p in parameters).detach()

        return optimizer, closure if info.step_requires_closure else None

    def _settings(self, device: str) -> list[dict]:
        info = OPTIMIZERS[self.name]
        given = [i.kwargs for i in info.optim_inputs_func(device=device) if i.params is None]
        clashing = {"foreach", "fused", "capturable", "differentiable"}
        plain = [k for k in given if not clashing & set(k) and not isinstance(k.get("lr"), torch.Tensor)]
        return plain[self.first : self.last]


def implementations(name: str, device: str) -> list[str]:
    """Returns the ways in which an optimizer is implemented for a device."""
    info = OPTIMIZERS[name]
    known = [i for i in info.supported_impls if i in ("foreach", "fused")]
    if "fused" in known and device not in info.supports_fused_on:
        known.remove("fused")
    if device != "cpu" and "capturable" in {
        f for i in info.optim_inputs_func(device=device) for f in i.kwargs
    }:
        known.append("capturable")
    return ["forloop", *known]
