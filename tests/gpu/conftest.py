"""What several GPU tests watch."""

import pytest
import torch

from fusion_core.replay import obstacle
from fusion_core.replay.recording import Recording


@pytest.fixture
def replays(monkeypatch):
    """A list that grows with each replay."""
    seen = []
    original = Recording.replay

    def counted(recording, arguments):
        seen.append(recording)
        return original(recording, arguments)

    monkeypatch.setattr(Recording, "replay", counted)
    monkeypatch.setattr(obstacle, "FEWEST_STEPS", 1)
    torch._dynamo.reset()
    return seen
