"""What every test runs under: one thread, fixed seeds, and tests that lack a GPU or a peer reported by name."""
import os
from importlib import metadata

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

NOT_RUN = "not run: "

if not torch.cuda.is_available():
    # Triton reads this when it is first imported; without a GPU its kernels run in the interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("positionlib", derandomize=True, deadline=None)
settings.register_profile("thorough", settings.get_profile("positionlib"), max_examples=1000)  # pytest --hypothesis-profile=thorough
settings.load_profile("positionlib")


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def lacking(item: pytest.Item) -> str | None:
    """What a test needs and this machine has not."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        return "no GPU"
    if peer := item.get_closest_marker("peer"):
        name, major = peer.args
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed"
        if installed.split(".")[0] != str(major):
            return f"{name} {major} is not installed"
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        if reason := lacking(item):
            item.add_marker(pytest.mark.skip(reason=NOT_RUN + reason))


def pytest_terminal_summary(terminalreporter):
    found = {}
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and NOT_RUN in report.longrepr[-1]:
            found.setdefault(NOT_RUN + report.longrepr[-1].partition(NOT_RUN)[2], []).append(report.nodeid)
    for reason, names in sorted(found.items()):
        terminalreporter.section(f"{reason} ({len(names)} tests)")
        for name in sorted(names):
            terminalreporter.write_line(f"{reason}: {name}")
