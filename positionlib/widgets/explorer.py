"""One widget class for every chapter: Python computes each state beforehand, the page only chooses and draws.

``Explorer`` calls ``compute(**choice)`` for every combination of its controls, stores the panels (``packing.py``) and
hands them to one front end (``explorer.js``). With a kernel the choice is an ordinary synced trait; without one the book's
static host (``book/static/js/static-widgets.js``) runs the same front end on the stored state.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import anywidget
import traitlets

from positionlib.errors import require, require_choice
from positionlib.widgets import packing
from positionlib.widgets.panel import Panel
from positionlib.widgets.panels import Badges, Text
from positionlib.widgets.style import DIVERGING, SEQUENTIAL

_FRONT = files("positionlib.widgets")


def _word(value: object) -> str:
    """A control's value as a reader sees it."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Control:
    """One input: an ordered slider of numbers, or a choice of a few names."""

    name: str
    label: str
    values: Sequence[Hashable]
    labels: Sequence[str] | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        values = tuple(self.values)
        require(self.name.isidentifier(), "Control.name", self.name, "a Python identifier", "It becomes a keyword of compute.")
        require(2 <= len(values) <= 60, f"{self.name}.values", values, "2 to 60 values", "A control with one value is no control: fix it in compute.")
        require(len(set(values)) == len(values), f"{self.name}.values", values, "distinct values", "Remove the repeated value.")
        labels = tuple(_word(v) for v in values) if self.labels is None else tuple(self.labels)
        require(len(labels) == len(values), f"{self.name}.labels", labels, f"{len(values)} labels", "Give one label a value.")
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
        kind = self.kind or ("slider" if numbers else "choice")
        require_choice(f"{self.name}.kind", kind, ("slider", "choice"))
        for name, value in (("values", values), ("labels", labels), ("kind", kind)):
            object.__setattr__(self, name, value)

    def position(self, value: Hashable) -> int:
        """Index of a value. Raises PositionContractError when the control does not offer it."""
        require(value in self.values, self.name, value, "one of " + ", ".join(map(repr, self.values)), "Choose an offered value.")
        return self.values.index(value)


class Explorer(anywidget.AnyWidget):
    """A question, at most five controls, and panels that Python computed for every combination.

    Parameters
    ----------
    name : identifies the widget on a page (lower case with hyphens).
    title, question : what it is and what the reader should answer with it.
    controls : one to five :class:`Control`.
    compute : ``compute(**choice)`` returns the panels of one state, top to bottom.
    caption : a sentence true of each state: a string, or ``caption(**choice)``.
    start : values shown first; controls it does not name start at their first value.

    Raises PositionContractError for a refused control, start, number or panel, and above ``LIMIT`` stored bytes.
    """

    _esm = (_FRONT / "explorer.js").read_text("utf-8")
    _css = (_FRONT / "explorer.css").read_text("utf-8")
    LIMIT = 400_000

    index = traitlets.List(traitlets.Int()).tag(sync=True)
    spec = traitlets.Dict().tag(sync=True)
    store = traitlets.Unicode().tag(sync=True)  # JSON [panels, states]: as text it is not indented in a notebook file
    block = traitlets.Bytes().tag(sync=True)

    def __init__(self, name: str, title: str, question: str, controls: Sequence[Control], compute: Callable[..., Sequence[Panel]],
                 caption: str | Callable[..., str], start: dict | None = None) -> None:
        self.controls = tuple(controls)
        names = [control.name for control in self.controls]
        require(1 <= len(names) <= 5, "controls", names, "one to five controls", "Fix the others in compute: a reader follows few.")
        require(len(set(names)) == len(names), "controls", names, "distinct names", "Rename one of the controls.")
        first = {control.name: control.values[0] for control in self.controls} | (start or {})
        require(set(first) == set(names), "start", start, "names of controls", "Spell the names as in controls.")
        choices = [dict(zip(names, values)) for values in itertools.product(*(c.values for c in self.controls))]
        computed = [tuple(compute(**choice)) for choice in choices]
        require(all(panels and all(isinstance(p, Panel) for p in panels) for panels in computed), "compute", compute,
                "a non-empty list of panels for every choice", "Return panels from positionlib.widgets.panels.")
        captions = [caption if isinstance(caption, str) else caption(**choice) for choice in choices]
        require(all(captions), "caption", caption, "a sentence for every choice", "Say what the reader should see.")
        panels, states = _share([packing.encode(p) for p in row] for row in _common_limits(computed))
        panels, block = packing.place(panels)
        words = list(dict.fromkeys(captions))
        spec = {"name": name, "title": title, "question": question, "captions": words,
                "controls": [{"name": c.name, "label": c.label, "kind": c.kind, "labels": list(c.labels)} for c in self.controls],
                "ramps": {"sequential": list(SEQUENTIAL), "diverging": list(DIVERGING)}}
        states = [[words.index(said), *row] for said, row in zip(captions, states)]
        store = json.dumps([panels, states], ensure_ascii=False, separators=(",", ":"))
        self.size = sum(len(json.dumps(part, ensure_ascii=False).encode("utf-8")) for part in (spec, store)) + len(base64.b64encode(block))
        require(self.size <= self.LIMIT, "states", f"{self.size:,} bytes in {len(states):,} states", f"at most {self.LIMIT:,} stored bytes",
                "Offer fewer values, fewer decimals, or limits= so that slices of one array are shared.")
        super().__init__(index=[c.position(first[c.name]) for c in self.controls], spec=spec, store=store, block=block)
        self._panels, self._states = json.loads(store)

    @traitlets.validate("index")
    def _index_in_range(self, proposal: dict) -> list[int]:
        index = list(proposal["value"])
        require(len(index) == len(self.controls) and all(0 <= i < len(c.values) for i, c in zip(index, self.controls)), "index", index,
                f"one index for each of {len(self.controls)} controls, below its number of values", "Use choose(name=value).")
        return index

    @property
    def choice(self) -> dict:
        """The current value of every control."""
        return {c.name: c.values[i] for c, i in zip(self.controls, self.index)}

    def choices(self) -> list[dict]:
        """Every combination, the last control moving fastest."""
        return [dict(zip((c.name for c in self.controls), values)) for values in itertools.product(*(c.values for c in self.controls))]

    def choose(self, **choice: Hashable) -> None:
        """Move some controls."""
        self.index = self._position(self.choice | choice)

    def state(self, **choice: Hashable) -> list[Panel]:
        """The panels of a state as stored (controls not named keep their current value); arrays are rounded to their decimals."""
        _, *row = self._states[self._state_number(choice)]
        return [packing.decode(self._panels[i], self.block) for i in row]

    def caption_of(self, **choice: Hashable) -> str:
        """The caption of a state."""
        return self.spec["captions"][self._states[self._state_number(choice)][0]]

    def text(self) -> str:
        """The current state in words: title, question, choice, caption and named results."""
        chosen = "; ".join(f"{c.label}: {c.labels[i]}" for c, i in zip(self.controls, self.index))
        lines = [self.spec["title"], f"Question: {self.spec['question']}", f"Shown: {chosen}", self.caption_of()]
        for panel in self.state():
            if isinstance(panel, Badges):
                lines += [f"{badge.label}: {badge.value}" for badge in panel.items]
            elif isinstance(panel, Text):
                lines.append(panel.text)
            elif getattr(panel, "alt", ""):
                lines.append(panel.alt)
        return "\n".join(lines)

    def picture(self) -> bytes:
        """The current state as PNG bytes; the same state gives the same bytes."""
        from positionlib.widgets.picture import draw

        return draw(self.spec["title"], self.state())

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.choice.items())
        return f"Explorer({self.spec['name']!r}, {chosen}; {len(self._states)} states)"

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        picture = base64.b64encode(self.picture()).decode("ascii")
        alt = {"alt": f"{self.spec['title']}. {self.caption_of()}"}
        return data | {"image/png": picture, "text/plain": self.text()}, metadata | {"image/png": alt}

    def _position(self, choice: dict) -> list[int]:
        require(set(choice) == {c.name for c in self.controls}, "choice", choice, "names of controls", "Spell the names as in controls.")
        return [c.position(choice[c.name]) for c in self.controls]

    def _state_number(self, choice: dict) -> int:
        number = 0
        for control, i in zip(self.controls, self._position(self.choice | choice)):
            number = number * len(control.values) + i
        return number


def _common_limits(computed: list[tuple[Panel, ...]]) -> list[list[Panel]]:
    """Give panels without limits the range of all panels of their kind and title in their place, so that colours keep their meaning."""
    ranges: dict[tuple, list[tuple[float, float]]] = {}

    def key(place: int, panel: Panel) -> tuple:
        return place, type(panel), getattr(panel, "title", "")

    def open_range(panel: Panel) -> bool:
        return getattr(panel, "limits", 0) is None

    for row in computed:
        for place, panel in enumerate(row):
            if open_range(panel):
                ranges.setdefault(key(place, panel), []).append(panel.value_range())

    def limits(place: int, panel: Panel) -> tuple[float, float]:
        low, high = (pick(pairs) for pick, pairs in zip((min, max), zip(*ranges[key(place, panel)])))
        return (low, high) if low < high else (low - 1.0, high + 1.0)

    return [[replace(panel, limits=limits(place, panel)) if open_range(panel) else panel for place, panel in enumerate(row)] for row in computed]


def _share(rows) -> tuple[list[dict], list[list[int]]]:
    """Distinct panels, and for every state the places of its panels among them."""
    seen: dict[str, int] = {}
    distinct, states = [], []

    def word(value: packing.Packed) -> list:
        return [value.kind, value.low, value.decimals, value.shape, value.data.hex()]

    for row in rows:
        places = []
        for stored in row:
            text = json.dumps(stored, default=word)
            if text not in seen:
                seen[text] = len(distinct)
                distinct.append(stored)
            places.append(seen[text])
        states.append(places)
    return distinct, states
