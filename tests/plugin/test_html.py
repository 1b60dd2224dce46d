"""The HTML report: what it shows, that nothing in it is executed, and that a browser renders it."""

import re
import shutil
import subprocess

import pytest

from pytest_fusealias.baseline.schema import Entry, Run
from pytest_fusealias.report.bench import Row, notes, shown_columns, tables
from pytest_fusealias.report.html import Report, render

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome on this machine")
COLUMNS = ("backend", "eager", "compiled", "ratio", "compile", "peak", "regions", "kernels", "outcome")


def entry(number, **values):
    given = {
        "test": f"tests/test_models.py::test_block[{number}]",
        "backend": "inductor",
        "machine": "m",
        "estimator": "e",
        "outcome": "PASS",
        "clock": "cpu",
        "cache": "warm",
        "threads": 1,
        "eager_s": 1e-4 * (10 - number),
        "compiled_s": 1.1e-4 * (10 - number),
        "ratio": 1.1,
        "ratio_low": 1.05,
        "ratio_high": 1.2,
        "max_time_ratio": 1.5,
        "log_ratios": tuple(0.01 * (k % 7) for k in range(30)),
        "compile_s": 1.5,
        "peak_bytes": 2**20 + number,
        "eager_peak_bytes": 2**20,
        "kernels": 3,
    }
    return Entry(**(given | values))


def failing(**values):
    given = {
        "test": "tests/test_cache.py::test_step",
        "backend": "fusion_core",
        "outcome": "FAIL",
        "failed": ["alias", "memory"],
        "findings": [["alias", "output", "illegal alias: shares memory"], ["memory", "peak", "8 B more"]],
        "not_measured": [["time", "too noisy"]],
        "timeline": {"eager": [0, 100, 50, 120, 0], "compiled": [0, 300, 10, 0]},
        "diagram": [
            ["output['a']", "argument x", "distinct", "full overlap, +0 B"],
            ["argument x", "state.cache", "partial overlap, +16 B", "partial overlap, +16 B"],
        ],
    }
    return given | values


def page(entries=(), verdicts=(), history=()):
    run = Run(
        "2030-01-01T00:00:00+00:00",
        "1.0",
        tuple(entries),
        {"processor": "CPU"},
        {"id": "0123456789abcdef", "dirty": True},
    )
    rows = [Row(e) for e in entries]
    return render(
        Report(
            title="fusealias report",
            run=run,
            summary="4 checked: 3 passed",
            tables=tuple(tables(rows, shown_columns(COLUMNS, rows), "name", "none")) if rows else (),
            notes=tuple(notes(entries)),
            verdicts=tuple(verdicts),
            history=tuple(history),
        )
    )


def full_page():
    past = [
        (f"{n:04d}_nightly", Run("", "", (entry(1, ratio=1 + n / 20, log_ratios=(n / 20,)),)))
        for n in range(4)
    ]
    return page([entry(n) for n in range(4)], [failing()], past)


def test_what_is_shown():
    text = full_page()
    for part in (
        "Failures",
        "Measurements",
        "Paired ratios",
        "History",
        "Not measured",
        "commit 0123456789 with changes",
    ):
        assert part in text
    assert text.count('class="dot"') == 4 * 30
    assert text.count('class="dot big"') == 5
    assert text.count('class="arc odd"') == 1
    assert text.count('class="arc"') == 2
    assert text.count('class="bytes ') == 2


def test_empty_report():
    text = page()
    assert "Measurements" not in text
    assert "Failures" not in text


def test_file_is_self_contained():
    text = full_page()
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert "url(" not in text


EVIL = "</td><script>document.title='owned'</script>\"'&"


def test_nothing_that_a_test_says_is_executed():
    text = page(
        [entry(0, test=EVIL, backend=EVIL, outcome=EVIL)],
        [
            failing(
                test=EVIL,
                findings=[[EVIL, EVIL, EVIL]],
                diagram=[[EVIL, "b", "distinct", EVIL]],
                not_measured=[[EVIL, EVIL]],
            )
        ],
        [(EVIL, Run("", "", (entry(0, test=EVIL, backend=EVIL, log_ratios=()),)))],
    )
    assert "<script>document.title" not in text


def browse(path, *arguments):
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=3000",
    ]
    return subprocess.run(
        [*command, *arguments, f"file://{path}"], capture_output=True, text=True, check=True, timeout=120
    )


def probed(path, text, script, *arguments):
    """Runs a script in the page and returns what it leaves in the title."""
    path.write_text(
        text.replace("</body>", f"<script>document.title = String((() => {{ {script} }})())</script></body>")
    )
    done = browse(path, "--dump-dom", *arguments)
    assert "CONSOLE" not in done.stderr, done.stderr
    return re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]


@needs_browser
@pytest.mark.parametrize("size", ["1280,1600", "390,844"])
def test_renders_without_console_error(tmp_path, size):
    sizes = {}
    for name, text in (("empty", "<!doctype html><title>x</title>"), ("report", full_page())):
        path = tmp_path / f"{name}.html"
        path.write_text(text)
        done = browse(path, f"--window-size={size}", f"--screenshot={tmp_path / name}.png")
        assert "CONSOLE" not in done.stderr, done.stderr
        sizes[name] = (tmp_path / f"{name}.png").stat().st_size
    assert sizes["report"] > 8 * sizes["empty"]


@needs_browser
def test_console_errors_would_be_seen(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<!doctype html><script>throw new Error('bad')</script>")
    assert "CONSOLE" in browse(path, "--dump-dom").stderr


@needs_browser
def test_phone_needs_no_sideways_scrolling(tmp_path):
    script = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert probed(tmp_path / "p.html", full_page(), script, "--window-size=500,900") == "true"


@needs_browser
@pytest.mark.parametrize(("scheme", "dark"), [(0, True), (1, False)])
def test_light_and_dark(tmp_path, scheme, dark):
    script = (
        "const of = (what) => getComputedStyle(document.body)[what].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0);"
        "return of('backgroundColor') < of('color')"
    )
    found = probed(
        tmp_path / "p.html", full_page(), script, f"--blink-settings=preferredColorScheme={scheme}"
    )
    assert found == str(dark).lower()


@needs_browser
def test_columns_sort(tmp_path):
    script = (
        "const heads = [...document.querySelectorAll('table.sortable th')];"
        "heads.find((h) => h.textContent === 'eager').click();"
        "return [...document.querySelectorAll('table.sortable tbody tr')].map((r) => r.cells[0].textContent).join()"
    )
    names = probed(tmp_path / "p.html", full_page(), script)
    assert names == ",".join(f"test_block[{n}]" for n in (3, 2, 1, 0))


@needs_browser
def test_evil_names_do_nothing(tmp_path):
    text = page([entry(0, test=EVIL)], [failing(test=EVIL)])
    assert probed(tmp_path / "p.html", text, "return document.title") == "fusealias report"
