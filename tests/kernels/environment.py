"""Interpreting and compiling need separate processes: the environment of one that compiles."""

import os


def without_interpreter() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
