"""The tables that travel with the library are the released ones, and their licence travels with them."""

from importlib.resources import files

import numpy as np

from positionlib.data import minilm_positions


def test_the_released_minilm_table_and_the_rows_that_stand_out():
    table = minilm_positions()
    assert table.shape == (512, 384) and table.dtype == np.float32
    assert np.array_equal(table, table.astype(np.float16).astype(np.float32)), "rounded to float16 once"
    norm = np.linalg.norm(table.astype(np.float64), axis=1)
    assert set(np.argsort(norm)[-3:].tolist()) == {0, 510, 511} and norm[127] == np.delete(norm, [0, 510, 511]).max()
    assert [round(float(norm[r]), 2) for r in (0, 127, 255, 511)] == [2.36, 0.69, 0.47, 0.97]


def test_every_table_is_listed_with_its_licence():
    folder = files("positionlib.data")
    readme = folder.joinpath("README.md").read_text("utf-8")
    for item in folder.iterdir():
        if item.name.endswith(".npz"):
            assert f"`{item.name}`" in readme and "LICENSE-APACHE-2.0" in readme
    assert folder.joinpath("LICENSE-APACHE-2.0").is_file()
