"""Options of the suites in this folder."""


def pytest_addoption(parser):
    """Declares the path of the corpus."""
    parser.addoption("--corpus", help="path of the corpus module")
