"""Prove in pytest that a compiled PyTorch program is indistinguishable from eager.

Importing this package does not import torch: a suite without fusion tests pays nothing for it.
"""

from pytest_fusealias.model import CheckResult, Finding, Outcome, Spec, Verdict

__version__ = "0.1.0"

__all__ = ["CheckResult", "Finding", "Outcome", "Spec", "Verdict", "__version__"]
