"""What every test runs under: one thread, fixed seeds, and tests that need a GPU reported by name where there is none."""
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

NO_GPU = "not run: no GPU"

if not torch.cuda.is_available():
    # Triton reads this when it is first imported; without a GPU its kernels run in the interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("positionlib", derandomize=True, deadline=None)
settings.load_profile("positionlib")


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_terminal_summary(terminalreporter):
    names = [report.nodeid for report in terminalreporter.stats.get("skipped", [])
             if isinstance(report.longrepr, tuple) and NO_GPU in report.longrepr[-1]]
    if names:
        terminalreporter.section(f"{NO_GPU} ({len(names)} tests)")
        for name in sorted(names):
            terminalreporter.write_line(f"{NO_GPU}: {name}")
