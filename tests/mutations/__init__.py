"""Faults that a test must notice, one list a part of the library. ``python -m tests.mutations [-k WORD]`` seeds them."""
