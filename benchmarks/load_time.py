"""Time what the plugin adds to a suite without fusion tests: `python benchmarks/load_time.py`.

Imports pytest and the plugin's own modules in fresh interpreters, and reports the median of what the plugin adds.
"""

import statistics
import subprocess
import sys

CODE = """
import importlib.metadata, sys, time
import pytest
start = time.perf_counter()
import pytest_fusealias.plugin
importlib.metadata.version("torch")
print((time.perf_counter() - start) * 1000, "torch" in sys.modules)
"""


def main():
    """Prints the median in milliseconds."""
    rows = [
        subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(15)
    ]
    times = [float(ms) for ms, _ in rows]
    imported = any(flag == "True" for _, flag in rows)
    print(
        f"median {statistics.median(times):.1f} ms of {len(times)} runs, max {max(times):.1f} ms; "
        f"torch imported: {imported}"
    )


if __name__ == "__main__":
    main()
