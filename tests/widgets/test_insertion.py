"""The insertion map: every tensor behind a state is recomputed here in plain numpy, and the table says which of them differ."""

import itertools
import math

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib.widgets import insertion
from positionlib.widgets.panels import Badges, Table

FAMILIES, CALLS = tuple(insertion.FAMILIES), {"prompt": (6, 6), "decode": (1, 65)}
ENTERS = {"content": "nowhere", "sinusoidal": "X", "learned": "X", "shaw": "S, and Y", "t5": "S", "deberta": "S", "rotary": "q and k", "nope": "M"}
FOLLOWS = {"": "", "X": "qkvSAY", "S": "AY", "q": "SAY", "M": "AY"}


@pytest.fixture(scope="module")
def explorer():
    return pl.widgets.insertion_map()


def parameters(family):
    """The module's numbers by name: normal, drawn in order from a generator of their own."""
    module = insertion.mechanism_of(family)
    return {} if module is None else {name: p.detach().numpy() for name, p in module.named_parameters()}


def oracle(family, call):
    """X, q, k, v, S, M, A, Y of one layer, from the definitions."""
    (queries, keys), d = CALLS[call], 8
    maker = torch.Generator().manual_seed(0)
    x = torch.randn(1, keys, 16, generator=maker, dtype=torch.float64).numpy()[0]
    weights = [torch.randn(16, 16, generator=maker, dtype=torch.float64).numpy() / 4 for _ in range(3)]
    p, t, new = parameters(family), np.arange(keys), np.arange(keys - queries, keys)
    if family == "sinusoidal":
        angles = t[:, None] * 10_000.0 ** (-2 * np.arange(8) / 16)
        x = x + np.stack((np.sin(angles), np.cos(angles)), -1).reshape(keys, 16)
    if family == "learned":
        x = x + p["weight"][:keys]

    def heads(rows):
        return rows.reshape(len(rows), 2, d).transpose(1, 0, 2)

    q, k, v = heads(x[new] @ weights[0]), heads(x @ weights[1]), heads(x @ weights[2])
    if family == "rotary":
        speeds = 10_000.0 ** (-2 * np.arange(4) / d)

        def turn(rows, at):
            pairs = rows[..., 0::2] + 1j * rows[..., 1::2]
            pairs = pairs * np.exp(1j * at[:, None] * speeds)
            return np.stack((pairs.real, pairs.imag), -1).reshape(rows.shape)

        q, k = turn(q, new), turn(k, t)
    offset = t[None, :] - new[:, None]  # key minus query
    s = q @ k.transpose(0, 2, 1) / math.sqrt(d)
    if family == "t5":
        s = s + p["weight"][pl.t5_bucket(torch.tensor(offset), bidirectional=True).numpy()].transpose(2, 0, 1)
    clipped = np.clip(offset, -4, 4) + 4
    if family == "shaw":
        s = s + np.einsum("hqd,qkd->hqk", q, p["key_table"][clipped]) / math.sqrt(d)
    if family == "deberta":
        rows_k = heads(p["weight"] @ p["pos_key_proj.weight"].T + p["pos_key_proj.bias"])
        rows_q = heads(p["weight"] @ p["pos_query_proj.weight"].T + p["pos_query_proj.bias"])
        c2p, p2c = np.clip(-offset + 8, 0, 15), np.clip(offset + 8, 0, 15)  # the paper's rule: query minus key, and the reverse
        s = (q @ k.transpose(0, 2, 1) + np.einsum("hqd,hqkd->hqk", q, rows_k[:, c2p]) + np.einsum("hkd,hqkd->hqk", k, rows_q[:, p2c])) / math.sqrt(3 * d)
    m = offset <= 0 if family == "nope" else np.ones_like(offset, dtype=bool)
    powers = np.exp(s) * m
    a = powers / powers.sum(-1, keepdims=True)
    y = a @ v + (np.einsum("hqk,qkd->hqd", a, p["value_table"][clipped]) if family == "shaw" else 0)
    return dict(zip("XqkvSMAY", (x, q, k, v, s, m, a, y)))


@pytest.mark.parametrize("family, call", [*itertools.product(FAMILIES, CALLS)])
def test_every_tensor_equals_the_definition(family, call):
    run = insertion.trace(family, call)
    for name, wanted in oracle(family, call).items():
        got = run[name].numpy()
        np.testing.assert_allclose(np.broadcast_to(got[0] if name != "M" else got[0, 0], wanted.shape), wanted, rtol=0, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("family, call", [*itertools.product(FAMILIES, CALLS)])
def test_the_table_says_where_it_enters_what_follows_and_which_shapes_there_are(explorer, family, call):
    (queries, keys), nothing = CALLS[call], family == "content" or (family, call) == ("nope", "decode")
    panels = explorer.state(family=family, call=call)
    table = next(p for p in panels if isinstance(p, Table))
    badges = {b.label: b.value for p in panels if isinstance(p, Badges) for b in p.items}
    place = "nowhere" if nothing else ENTERS[family]
    assert badges["geometry enters at"] == place and badges["shapes that changed"] == "0 of 8"
    assert badges["learned numbers"] == {"learned": "2,048", "shaw": "144", "t5": "64", "deberta": "800"}.get(family, "0")
    shapes = {"X": [1, keys, 16], "q": [1, 2, queries, 8], "k": [1, 2, keys, 8], "v": [1, 2, keys, 8], "S": [1, 2, queries, keys],
              "M": [1, 1, queries, keys], "A": [1, 2, queries, keys], "Y": [1, 2, queries, 8]}
    plain, run = oracle("content", call), oracle(family, call)
    first = [] if nothing else [c for c in "XqkSM" if c in place.replace("and Y", "").replace("and", "")]
    assert [row[0] for row in table.rows] == list(shapes) and [row[2] for row in table.rows] == [str(s) for s in shapes.values()]
    for name, _, _, said in table.rows:
        differs = not np.allclose(plain[name], run[name], rtol=0, atol=1e-12)
        assert said == ("enters here" if name in first else "follows" if differs else "same"), (name, said)
        assert differs == (name in first or name in FOLLOWS["" if nothing else first[0]])
    assert [table.rows[i][0] for i in table.highlight] == first


@pytest.mark.parametrize("family, call", [*itertools.product(FAMILIES, CALLS)])
def test_captions_are_true(explorer, family, call):
    said = explorer.caption_of(family=family, call=call)
    queries, keys = CALLS[call]
    assert f"S is [1, 2, {queries}, {keys}]." in said
    assert ("nothing is learned" in said.lower()) == (family in ("sinusoidal", "rotary"))
    run = oracle(family, call)
    assert ("a second time" in said) == (not np.allclose(run["A"] @ run["v"], run["Y"]))
    assert said.startswith("Nothing differs") == ((family, call) == ("nope", "decode"))
    assert len({explorer.caption_of(family=f, call=c) for f in FAMILIES for c in CALLS}) == 16


def test_at_rest_and_size(explorer):
    assert explorer.choice == {"family": "t5", "call": "prompt"}
    assert explorer.size < 40_000
