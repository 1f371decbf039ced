"""Run the library against arrays that reference implementations produced: ``python -m tests.oracles FOLDER``.

A folder holds a ``manifest.json`` of the form in ``tests/fixtures/README.md``. A case is mapped to library calls by its source,
settings, conventions and arrays, never by its name, so that the runner also works on cases it has not seen.
"""
