"""Twenty steps of training in one compiled function: the same losses, parameters and optimizer state as eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, foreach=True),
}
STEPS = 20


class Model(nn.Module):
    """Embedding, batch norm with running statistics, dropout, a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        x = self.norm(self.words(tokens).transpose(1, 2)).transpose(1, 2)
        x = x + F.dropout(torch.tanh(self.inner(x)), 0.1)
        return F.cross_entropy(self.head(self.inner(x)).flatten(0, 1), tokens.flatten())


def training_step(model, optimizer, *, set_to_none):
    def step(tokens):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_eager(name, set_to_none):
    torch.manual_seed(0)
    ours = Model()
    theirs = copy.deepcopy(ours)
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (ours, theirs)]
    compiled = torch.compile(
        training_step(ours, optimizers[0], set_to_none=set_to_none), backend="fusion_core"
    )
    eager = training_step(theirs, optimizers[1], set_to_none=set_to_none)
    data = torch.randint(0, 11, (STEPS, 4, 6))
    for number, tokens in enumerate(data):
        losses = []
        for step in (compiled, eager):
            torch.manual_seed(number)
            losses.append(step(tokens))
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    gradients = [[p.grad for p in m.parameters()] for m in (ours, theirs)]
    torch.testing.assert_close(*gradients)
    states = [list(o.state_dict()["state"].values()) for o in optimizers]
    torch.testing.assert_close(*states)


@pytest.mark.filterwarnings("ignore")
def test_gradients_accumulate_in_place():
    """A second backward adds to the tensors that the first one made, which others may hold."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="fusion_core")
    x = torch.randn(3, 4)
    compiled(x).tanh().sum().backward()
    held = [p.grad for p in model.parameters()]
    compiled(x).tanh().sum().backward()
    for _ in range(2):
        reference(x).tanh().sum().backward()
    assert all(p.grad is h for p, h in zip(model.parameters(), held, strict=True))
    torch.testing.assert_close(held, [p.grad for p in reference.parameters()])
