"""The sections of the course, in reading order, and the module name that belongs to each."""

from __future__ import annotations

import importlib
import pkgutil

from positionlib.errors import require_choice

SECTIONS = (
    "0x00", "0x00A", "0x01", "0x02", "0x02A", "0x03", "0x03A", "0x04", "0x05", "0x06", "0x07", "0x08", "0x08A", "0x09", "0x09A",
    "0x09B", "0x09C", "0x09D", "0x09E", "0x09F", "0x0A", "0x0B", "0x0C", "0x0D",
)


def section_of(identifier: str) -> str:
    """The section that an id such as ``"0x02A.decode-reset"`` or ``"0x02A.1"`` belongs to."""
    return require_choice("section", str(identifier).partition(".")[0], SECTIONS)


def load_section(package: str, section: str) -> bool:
    """Import ``package``'s file of one section (``x02a`` for 0x02A) so that it registers itself; False when there is none."""
    name = "x" + require_choice("section", section, SECTIONS)[2:].lower()
    path = importlib.import_module(package).__path__
    if not any(module.name == name for module in pkgutil.iter_modules(path)):
        return False
    importlib.import_module(f"{package}.{name}")
    return True
