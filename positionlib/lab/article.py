"""The article's failures and its failure-to-guard table, each tied to cases that run.

:func:`lines` restates every failure that section 0x0C names, and the six migration failures of 0x07, with the ids of the cases that show it.
:func:`guard_table` is the table that closes 0x0C. A :class:`GuardRow` runs its cases when it is made: without a guard that refuses
the broken side and accepts the right one there is no row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from html import escape

from positionlib.errors import require, require_choice
from positionlib.lab.registry import Demonstration, cases, get, verify
from positionlib.sections import SECTIONS

# Groups in the article's order, and how many failures it names in each; the last group is 0x07's.
GROUPS = {"addition": 8, "layout": 5, "ids": 4, "table": 4, "padding": 4, "media": 7, "cache": 2, "relative": 8, "structured": 3, "migration": 6}


@dataclass(frozen=True)
class Line:
    """One failure of the article: its group, a short name, what goes wrong in our own words, and the cases that show it.

    Raises
    ------
    PositionContractError
        an unknown group, no case, or an id that is not registered.
    """

    group: str
    name: str
    wrong: str
    cases: tuple[str, ...]

    def __post_init__(self) -> None:
        require_choice("group", self.group, tuple(GROUPS))
        for text in ("name", "wrong"):
            require(bool(getattr(self, text).strip()), text, getattr(self, text), "a non-empty text", "Say what goes wrong.")
        _check_ids(self.cases)


@dataclass(frozen=True)
class GuardRow:
    """One row of the failure-to-guard table. ``oracle`` is the article's name of the evidence, ``tests`` the files that hold ours.

    Raises
    ------
    PositionContractError
        no case, an id that is not registered, or a case whose guard does not do its work when it is run.
    """

    failure: str
    guard: str
    oracle: str
    tests: tuple[str, ...]
    cases: tuple[str, ...]
    shown: tuple[Demonstration, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for text in ("failure", "guard", "oracle"):
            require(bool(getattr(self, text).strip()), text, getattr(self, text), "a non-empty text", "Fill in the row.")
        require(len(self.tests) > 0, "tests", self.tests, "at least one file", "Name where the oracle is run.")
        _check_ids(self.cases)
        object.__setattr__(self, "shown", tuple(verify(identifier) for identifier in self.cases))

    @property
    def survives(self) -> tuple[int, int]:
        """In how many of the row's wrong answers and late errors the shape is kept, and of how many."""
        counted = [shown for identifier, shown in zip(self.cases, self.shown) if get(identifier).kind in ("wrong_answer", "late_error")]
        return sum(shown.same_shape for shown in counted), len(counted)


def _check_ids(identifiers: tuple[str, ...]) -> None:
    require(isinstance(identifiers, tuple) and len(identifiers) > 0, "cases", identifiers, "at least one case id", "A failure that never ran is a story.")
    for identifier in identifiers:
        get(identifier)


@cache
def lines() -> tuple[Line, ...]:
    """Every failure of 0x0C by group, then the six of 0x07."""
    return tuple(Line(group, name, wrong, cases) for group, entries in _LINES.items() for name, wrong, *cases in entries for cases in [tuple(cases)])


@cache
def guard_table() -> tuple[GuardRow, ...]:
    """The thirteen rows; the first call runs all their cases."""
    return tuple(GuardRow(*row) for row in _TABLE)


class Listing:
    """A table for a page: HTML that scrolls sideways where it is too wide, and plain text elsewhere; a line break in a cell is kept.

    ``folded`` puts the table behind a summary of that text.
    """

    def __init__(self, columns: tuple[str, ...], rows: list[tuple[str, ...]], *, folded: str = "") -> None:
        self.columns, self.rows, self.folded = columns, rows, folded

    def __str__(self) -> str:
        return "\n".join(" | ".join(row).replace("\n", "; ") for row in ((self.columns,) if not self.folded else ((self.folded,), self.columns)) + tuple(self.rows))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        cells = [[escape(text).replace("\n", "<br>").replace(".", ".<wbr>") for text in row] for row in self.rows]
        body = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in cells)
        table = f'<div style="overflow-x:auto;font-size:0.85em" tabindex="0"><table class="table dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        return f"<details><summary>{escape(self.folded)}</summary>{table}</details>" if self.folded else table


class Listings(list):
    """Several listings, one under the other."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "".join(listing._repr_html_() for listing in self)


def guard_listing() -> Listing:
    """The failure-to-guard table from its rows. Where a shape survives is counted over the row's cases."""
    return Listing(("failure", "guard", "oracle, and cases that ran"),
                   [(f"{row.failure}\nshape kept: {row.survives[0]} of {row.survives[1]}", row.guard, "\n".join((row.oracle, *row.cases)))
                    for row in guard_table()])


def line_listings() -> Listings:
    """The article's failures, group by group: what goes wrong, and the cases that show it."""
    return Listings(Listing(("failure", "what goes wrong", "cases"), [(line.name, line.wrong, "\n".join(line.cases)) for line in lines() if line.group == group],
                            folded=f"{group}: {count} failures") for group, count in GROUPS.items())


def index() -> Listings:
    """Every registered failure, chapter by chapter: kind, title, guard and case."""
    found = [(section, cases(section=section)) for section in SECTIONS]
    return Listings(Listing(("kind", "failure", "guard", "case"), [(c.kind.replace("_", " "), c.title, c.guard_name, c.id.partition(".")[2]) for c in own],
                            folded=f"{section}: {len(own)} failure{'s' * (len(own) != 1)}") for section, own in found if own)


_LINES: dict[str, list[tuple[str, ...]]] = {
    "addition": [
        ("a proof stretched over a mask", "Equivariance is proved without a mask, and claimed of a layer whose causal mask stays in place.",
         "0x01.proof-over-a-fixed-mask"),
        ("NoPE said to be without order", "A causal layer has no position table, so it is said to see no order; its rows still have prefixes of different length.",
         "0x01.nope-without-geometry", "0x09F.no-geometry"),
        ("positions deleted from a checkpoint", "A model trained with positions is run without them, because others were trained without.", "0x09F.deleted-positions"),
        ("position rows never added", "The sum with the position rows is left out; the states keep their shape and lose their order.",
         "0x01.position-not-assigned", "0x02.route-not-run"),
        ("half of the input path called", "The token embedding is called alone where embedding and position module belong together.",
         "0x04.embeddings-only", "0x03.embeddings-only"),
        ("position rows added twice", "One module adds the rows, and its caller adds them again.", "0x03.added-twice", "0x03.content-twice"),
        ("added before the projector", "Rows made for the model's states are added to media features in front of the projection.",
         "0x03.before-the-projector", "0x03.wrong-width-before-the-projector"),
        ("a table of another width", "Rows computed for one width are cut to another, and their frequencies stay those of the first.",
         "0x02.table-of-another-width", "0x02.learned-table-cut", "0x02.table-not-cut"),
    ],
    "layout": [
        ("sliced by the batch size", "The table is cut to the size of the wrong axis.", "0x04.batch-length-slice"),
        ("batch and sequence exchanged", "Code for [n, B, d] meets states [B, n, d]; equal sizes hide it.", "0x04.axes-exchanged"),
        ("broadcast along the wrong axis", "A table lines up with the batch, so that sequences and not tokens are numbered.",
         "0x04.sequence-first-table", "0x03.numbers-the-sequences"),
        ("the table is no buffer", "A plain attribute does not follow its module to another device.", "0x04.missing-buffer"),
        ("the fixed table is trained", "A fixed table is registered as a parameter, and the optimizer moves it.", "0x04.trainable-table", "0x04.initialised-over"),
    ],
    "ids": [
        ("tokens put in front, ids kept", "BOS or a template moves every later token, and the numbering does not follow.",
         "0x0C.template-not-counted", "0x08.missing-bos"),
        ("BOS twice", "Template and tokenizer both insert BOS: all later coordinates grow by one.", "0x08.double-bos"),
        ("source and target confused", "Equal numbers of two streams are taken for one place.", "0x08.streams-confused"),
        ("restart after the prompt", "A decoder goes on after a prompt, and its positions begin again at 0.", "0x04.chunk-restart", "0x02A.decode-reset"),
    ],
    "table": [
        ("an id past the table", "A position has no row.", "0x07.out-of-range", "0x02A.one-id-for-three"),
        ("new rows taken for learned ones", "A longer table has more rows, and they count as trained because they exist.", "0x07.called-trained"),
        ("another checkpoint's table", "The shape is right, the rows were learned elsewhere.", "0x07.another-checkpoint"),
        ("stretched without a look back", "Interpolation covers more positions and moves the old ones.", "0x07.stretched-table", "0x07.skipped-regression"),
    ],
    "padding": [
        ("pads are read after attention", "Attention hides the pads; a pooling after it takes them in.", "0x08.pool-reads-pads", "0x08.last-column"),
        ("the padding side moves a prompt", "The same prompt gets other coordinates when pads stand on its left.", "0x08.left-pad-counted"),
        ("mask and ids disagree", "A token has a pad's coordinate, or a pad a token's.", "0x08.mask-ids-disagree", "0x08.mixed-conventions"),
        ("two ways of counting pads", "One part counts the pads, another leaves them out; each alone would do.", "0x0C.prefill-decode", "0x08.decode-counts-pads"),
    ],
    "media": [
        ("chunks that forget the text", "Each chunk of one long text counts from 0.", "0x0C.chunk-reset"),
        ("chunks that should have restarted", "Separate texts are numbered on, at positions that none of them has alone.", "0x0C.chunk-not-reset"),
        ("boxes left behind", "Words are sorted or batched, and their places on the page are not.", "0x0C.boxes-left-behind", "0x00.layout-defaulted"),
        ("patches in another order", "The same patches are flattened along the other axis.", "0x0C.patch-order"),
        ("frames with the wrong stride", "Frames were dropped or resampled, and the times still step as before.", "0x0C.timestamp-stride"),
        ("joined rows, old metadata", "Parts are joined, and what describes them still names rows of the old order.", "0x0C.concat-metadata"),
        ("events without their parents", "Events are there; which call a result answers is not.", "0x0C.parent-dropped", "0x0C.parent-by-slot"),
    ],
    "cache": [
        ("rows that four numbers disagree on", "Token, mask, position and cache slot of one row describe different rows.",
         "0x0D.decode-at-zero", "0x0D.merged-fragments", "0x02A.double-cursor"),
        ("prefill and decode count apart", "Cached keys and the new query stand in two coordinate systems.", "0x0C.prefill-decode", "0x08.decode-counts-pads"),
    ],
    "relative": [
        ("the sign turned around", "Trained with i − j and read with j − i: past and future change places.", "0x09B.reversed", "0x09A.sign"),
        ("a bias used as a mask", "A finite bias leaves some weight on keys that may not be read.", "0x09C.bias-as-mask", "0x00.bias-for-mask", "0x09A.finite-sentinel"),
        ("offsets from the query's own length", "One new query is numbered from 0 and not from the cache.",
         "0x09C.local-arange", "0x09A.local-arange", "0x09B.window-classes", "0x02A.bucket-reset"),
        ("two-sided buckets in a decoder", "A causal table is read by the encoder's bucket rule.", "0x09C.bidirectional-decoder"),
        ("a vector for every pair", "The table is small, the expanded tensor is not.", "0x09B.expanded-vectors"),
        ("heads in another order", "A per-head bias stays where it was while the heads moved.", "0x0C.head-order", "0x09C.sorted-slopes", "0x09C.shard-slopes"),
        ("a prefix stored under other rules", "The tokens are the same; scheme, origin or release of the keys is not.",
         "0x0C.prefix-scheme", "0x0C.prefix-origin", "0x0C.prefix-adapter", "0x02A.old-release-cache"),
        ("segment memory taken for a KV cache", "Memory holds hidden states without gradient; keys of an earlier step are another object.",
         "0x09D.memory-as-kv-cache", "0x09D.memory-gradient"),
    ],
    "structured": [
        ("a traversal without its coordinates", "Rows and columns describe other cells than the patches.", "0x09F.traversal", "0x09F.same-count"),
        ("seconds and milliseconds", "Every learned phase is multiplied by 1000.", "0x09F.milliseconds"),
        ("pairs moved on one side", "Nodes are reordered, their distances are not.", "0x09F.one-sided"),
    ],
    "migration": [
        ("longer weights, old configuration", "The new rows exist, and no caller reaches them.", "0x07.weights-without-config"),
        ("longer configuration, old weights", "An admitted id has no row.", "0x07.config-without-weights"),
        ("stale moments", "The optimizer state belongs to the old rows.", "0x07.stale-moments", "0x07.fresh-moments"),
        ("untrained rows called trained", "That a row exists is taken for training.", "0x07.called-trained"),
        ("an old cache kept", "Keys of the old release are read by the new one.", "0x07.old-cache"),
        ("no look at the base range", "Work on long positions moves short ones unseen.", "0x07.skipped-regression"),
    ],
}

_TABLE = [
    ("wrong token row or logical position", "validate the call's manifest: every row has one declared position", "position-manifest oracle",
     ("tests/test_manifest.py", "tests/test_call.py"), ("0x02A.decode-reset", "0x0C.chunk-reset", "0x02A.double-cursor", "0x02A.chunk-at-the-end")),
    ("batch and sequence exchanged", "declare the layout, and compare the sliced axis with the sequence length", "absolute-coordinate oracle",
     ("tests/mechanisms/test_sinusoidal.py", "tests/mechanisms/test_learned.py"), ("0x04.batch-length-slice", "0x04.axes-exchanged", "0x04.sequence-first-table")),
    ("wrong sinusoidal offset, base or channel layout", "compute rows from the declared constants, and convert layouts by name", "sinusoidal algebra oracle",
     ("tests/mechanisms/test_sinusoidal_algebra.py", "tests/mechanisms/test_sinusoidal.py"),
     ("0x05.wrong-base", "0x05.wrong-ladder", "0x04.layout-without-weights", "0x04.chunk-restart")),
    ("positions that collide in a narrow dtype", "sweep the dtype and name the first positions that cannot be told apart", "sinusoidal precision trace",
     ("tests/mechanisms/test_sinusoidal_precision.py",), ("0x06.cast-positions", "0x06.autocast-phase", "0x06.cast-frequencies")),
    ("table resized without its optimizer", "reconcile weights, moments, configuration, release and roll-back", "learned-position oracle",
     ("tests/checkpoints/test_migration.py", "tests/checkpoints/test_release.py"), ("0x07.stale-moments", "0x07.fresh-moments", "0x07.weights-without-config")),
    ("NoPE without its causal mask", "a causal_nope model demands causal visibility", "alternative-coordinate oracle, backend admission",
     ("tests/mechanisms/test_nope.py", "tests/kernels/test_admission.py"), ("0x09F.lost-mask", "0x01.causal-mask-dropped")),
    ("relative sign turned around", "test with more keys than queries, and values that are not symmetric", "Shaw and decomposed-score oracles",
     ("tests/mechanisms/test_shaw.py", "tests/mechanisms/test_deberta.py"), ("0x09B.reversed", "0x09A.sign")),
    ("finite bias used as a mask", "check visibility on its own: a forbidden key has probability 0", "scalar-bias oracle",
     ("tests/mechanisms/test_alibi.py", "tests/test_attention.py"), ("0x09C.bias-as-mask", "0x00.bias-for-mask", "0x09A.finite-sentinel")),
    ("wrong T5 buckets or ALiBi head order", "freeze bucket ids, slopes, and which heads a shard holds", "scalar-bias oracle",
     ("tests/mechanisms/test_t5.py", "tests/mechanisms/test_alibi.py"),
     ("0x09C.bidirectional-decoder", "0x09C.sorted-slopes", "0x09C.shard-slopes", "0x0C.head-order")),
    ("Shaw's values or a DeBERTa term left out", "compare the terms that run with those of the checkpoint", "runtime-admission oracle",
     ("tests/mechanisms/test_shaw.py", "tests/mechanisms/test_deberta.py"), ("0x09B.no-value-side", "0x09D.dropped-term")),
    ("stale grid, time or graph metadata", "move row metadata once with its rows, pair state on both axes", "alternative-coordinate oracle",
     ("tests/test_transport.py", "tests/mechanisms/test_graph.py", "tests/mechanisms/test_time2vec.py"),
     ("0x09F.traversal", "0x09F.milliseconds", "0x09F.one-sided", "0x0C.boxes-left-behind", "0x0C.concat-metadata")),
    ("incompatible checkpoint conversion", "fail closed on sign, layout, scale, rows, sharing and special rows", "runtime-admission oracle",
     ("tests/checkpoints/test_refusals.py", "tests/checkpoints/test_maps.py"),
     ("0x09C.transposed-table", "0x09D.paper-index", "0x09C.divided-t5", "0x0D.grouped-heads", "0x08.mixed-conventions", "0x09D.lost-cls")),
    ("cache reused across identities", "key caches by family, origin, offsets, segments, backend and release", "positional-call manifest",
     ("tests/test_identity.py",), ("0x0C.prefix-scheme", "0x0C.prefix-origin", "0x0C.prefix-adapter", "0x02A.old-release-cache", "0x07.old-cache")),
]
