"""Run the plugin over a corpus of reported compiler bugs and write the table of outcomes.

    python benchmarks/corpus.py PATH/TO/corpus.py --out docs/results/corpus.md

Each case runs under every backend in pytest, through the imperative form `fusion_check`.
"""

import argparse
import datetime as dt
import platform
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
BACKENDS = ("eager", "aot_eager", "inductor", "fusion_core")


class Outcomes:
    """Collects the verdicts of all reports by case and backend."""

    def __init__(self):
        self.rows = {}

    def pytest_runtest_logreport(self, report):
        """Keeps verdicts, and what failed without one."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.split("[", 1)[-1].rstrip("]")
        entries = getattr(report, "fusealias", None)
        for entry in entries or ():
            self.rows[self._case(name, entry["backend"]), entry["backend"]] = entry
        if not entries and report.failed:
            case, _, backend = name.rpartition("-")
            self.rows[case or name, backend] = {
                "outcome": "CRASH",
                "failed": [],
                "refused": False,
                "not_measured": [],
                "weak": [],
            }

    @staticmethod
    def _case(name, backend):
        return name.removesuffix(f"-{backend}").removeprefix(f"{backend}-")


def cell(entry):
    """One cell of the table: the outcome and the checks that say so."""
    if entry is None:
        return "missing"
    text = entry["outcome"]
    if entry["refused"]:
        text += " (refused)"
    elif entry["failed"]:
        text += ": " + ", ".join(entry["failed"])
    elif entry["not_measured"]:
        text += ": " + ", ".join(check for check, _ in entry["not_measured"])
    return text + (f"; {len(entry['weak'])} weak" if entry["weak"] else "")


def table(rows, backends, command):
    """Yields the markdown page."""
    cases = list(dict.fromkeys(case for case, _ in rows))
    yield "# Outcomes over the corpus of reported bugs"
    yield ""
    device = torch.cuda.get_device_name() if "--device cuda" in command else f"{platform.machine()} CPU"
    yield (
        f"{dt.date.today().isoformat()}, torch {torch.__version__}, Python {platform.python_version()}, {device}. "
        f"Command: `{command}`"
    )
    yield ""
    yield "A refusal is a loud error where eager runs; every other failure is a silent difference."
    yield ""
    yield "| case | " + " | ".join(backends) + " |"
    yield "|---" * (len(backends) + 1) + "|"
    for case in cases:
        yield f"| {case} | " + " | ".join(cell(rows.get((case, b))) for b in backends) + " |"
    yield ""
    for backend in backends:
        found = [rows.get((case, backend)) for case in cases]
        counts = {}
        for entry in found:
            key = (
                "missing" if entry is None else entry["outcome"] + (" (refused)" if entry["refused"] else "")
            )
            counts[key] = counts.get(key, 0) + 1
        yield f"* {backend}: " + ", ".join(f"{n} {key}" for key, n in sorted(counts.items()))


def main():
    """Runs the suite and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--out", default="docs/results/corpus.md")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-k", default="")
    parser.add_argument("-n", default="2", help="worker processes")
    given = parser.parse_args()
    backends = given.backends.split(",")
    outcomes = Outcomes()
    arguments = [
        str(HERE / "corpus_suite.py"),
        "-q",
        "-p",
        "no:cacheprovider",
        f"--corpus={given.corpus}",
        f"--fusion-device={given.device}",
        f"-n{given.n}",
        "-W",
        "ignore",
        "--tb=no",
        "--no-summary",
        "-k",
        given.k,
        "-o",
        "addopts=",
        "-c",
        "/dev/null",
        *[f"--fusion-backend={b}" for b in backends],
    ]
    pytest.main(arguments, plugins=[outcomes])
    command = f"python benchmarks/corpus.py CORPUS --backends {given.backends}"
    command += f" --device {given.device}" if given.device != "cpu" else ""
    Path(given.out).write_text("\n".join(table(outcomes.rows, backends, command)) + "\n")
    print("\n".join(table(outcomes.rows, backends, command)))


if __name__ == "__main__":
    main()
