"""Run the library against faults reported in public: ``python -m tests.cases CASES.json``.

The file has the form of ``tests/fixtures/CASES.md``. ``call.mechanism`` and its fields decide which library calls are made; a case's
id takes no part in it. A field that no handler reads, or an expectation that none checks, makes a case "not covered", never "pass".
"""
