"""The shape ledger: every line against the article's axes, its annotation, and a twin that no shape tells from it."""

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.contract import checked
from positionlib.errors import PositionContractError
from positionlib.mechanisms.sinusoidal import sinusoidal_rows, sinusoidal_table
from positionlib.shapes import Lengths, annotation, call, ledger, read_together, refuses, written

SIZES = [Lengths(B=2, n=4, d=4, h=2, Q=2, K=4), Lengths(B=3, n=5, d=12, h=3, Q=4, K=7), Lengths(B=1, n=6, d=8, h=1, Q=1, K=6, L=9)]
ARTICLE = {  # section 0x0B; patch coordinates are two lines, Shaw's rows keep two axes of 1, the memory is time first
    "input_ids": "B n", "X_content": "B n d", "position": "L 1", "div_term": "d/2", "pe": "L d", "pe buffer": "1 L d", "pe[:, :n]": "1 n d",
    "X + pe[:, :n]": "B n d", "position_ids": "B n", "P": "L d", "P[position_ids]": "B n d", "attention_mask": "B n", "query_positions": "Q",
    "key_positions": "K", "relative_offsets": "Q K", "Shaw rows": "1 1 Q K d/h", "T5 bucket ids": "Q K", "scalar bias": "1 h Q K", "XL memory": "M B d",
    "source states": "B S d", "target states": "B T d", "layout boxes": "B n 4", "patch row": "B n", "patch col": "B n", "time indices": "B n",
    "event: has a time": "B n", "X_positioned": "B n d"}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_object_of_the_article_is_made_and_read(sizes):
    lines = ledger(sizes)
    assert {line.name: line.axes for line in lines} == ARTICLE
    known = {"B": sizes.B, "n": sizes.n, "d": sizes.d, "h": sizes.h, "Q": sizes.Q, "K": sizes.K, "L": sizes.L, "1": 1, "4": 4, "d/2": sizes.d // 2,
             "d/h": sizes.d // sizes.h, "M": sizes.K - sizes.Q, "S": sizes.K, "T": sizes.Q}
    for line in lines:
        assert line.shape == tuple(known[a] for a in line.axes.split()), line.name
        assert isinstance(line.tensor, line.hint) and line.nbytes == line.tensor.numel() * line.tensor.element_size()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_line_has_a_twin_that_fits(sizes):
    torch.manual_seed(0)
    for line in ledger(sizes):
        if sizes.B * (sizes.K - sizes.Q) == max(sizes.B, sizes.K - sizes.Q) and line.name == "XL memory":
            continue  # one sequence, or one row: an exchange of the axes changes nothing
        twin = line.twin()
        assert line.accepts(twin) and not torch.equal(twin, line.tensor), line.name


def test_shapes_are_the_same_without_storage():
    assert [(line.shape, line.nbytes) for line in ledger(SIZES[1], device="meta")] == [(line.shape, line.nbytes) for line in ledger(SIZES[1])]


@pytest.mark.parametrize("sizes, field", [(Lengths(0, 4, 4, 2, 2, 4), "B"), (Lengths(2, 4, 6, 2, 2, 4), "d"), (Lengths(2, 4, 4, 2, 5, 4), "L"),
                                          (Lengths(2, 4, 4, 2, 2, 9), "L"), (Lengths(2, 9, 4, 2, 2, 4), "L")])
def test_sizes_that_make_no_call_are_refused(sizes, field):
    with pytest.raises(PositionContractError) as refused:
        ledger(sizes)
    assert refused.value.field == field


def test_letters_keep_their_length_within_a_scope_and_not_beyond():
    x, ids = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    state, numbers = Float[Tensor, "B N D"], Int[Tensor, "B N"]
    read_together({"x": (x, state), "ids": (ids, numbers)})
    assert "ids" in refuses(lambda: read_together({"x": (x.transpose(0, 1), state), "ids": (ids, numbers)}))
    assert not refuses(lambda: read_together({"x": (x.transpose(0, 1), state)}))  # alone, a letter is any length
    square = torch.zeros(3, 3, 4)
    assert not refuses(lambda: read_together({"x": (square.transpose(0, 1), state), "ids": (ids.new_zeros(3, 3), numbers)}))
    assert "x" in refuses(lambda: read_together({"x": (x.long(), state)})) and "x" in refuses(lambda: read_together({"x": (x[0], state)}))


def test_a_result_is_read_with_its_arguments():
    @checked
    def shortened(x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        return x[:, 1:]

    assert "return" in refuses(lambda: call(shortened, torch.zeros(2, 3, 4)))
    assert torch.equal(call(sinusoidal_table, 3, 4), sinusoidal_table(3, 4))


def test_annotations_are_the_source_s_own():
    assert written(annotation(sinusoidal_table)) == 'Float "length D"' and written(annotation(sinusoidal_rows, "positions")) == 'Int "*B N"'
    with pytest.raises(PositionContractError, match="d_model"):
        annotation(sinusoidal_table, "d_model")
