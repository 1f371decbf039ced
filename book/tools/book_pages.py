"""A Sphinx extension with what the book's pages need beyond the theme.

- A picture without a description of its own is described by its output's text: the finding that ``style.show`` was given.
- Without JavaScript a widget's saved picture stands where the widget would be.
- A mark that touches a formula stays on its line.
- Entries of the bibliography are list items: the role that docutils gives them is deprecated, and no reader knows it.
- The reference pages' slots are filled from the chapters (generated.py).
"""
import re

from docutils import nodes
from generated import fill
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

WIDGET = "application/vnd.jupyter.widget-view+json"
PICTURES = ("image/svg+xml", "image/png", "image/jpeg")


class Pictures(SphinxPostTransform):
    """Describe the pictures of outputs, and put a widget's saved picture, in <noscript>, behind its view."""

    default_priority = 3  # myst-nb picks one kind of data from each output at 4

    def run(self, **kwargs) -> None:
        for bundle in list(self.document.findall(nodes.container)):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            kinds = {child["mime_type"]: child for child in bundle.children}
            if "image/png" in kinds and "text/plain" in kinds:
                said = kinds["text/plain"].astext().strip()
                words = said.partition("\n")[0] if WIDGET in kinds else " ".join(said.split())
                for image in kinds["image/png"].findall(nodes.image):
                    image.setdefault("alt", words)
            pictures = [kinds[kind] for kind in PICTURES if kind in kinds]
            if WIDGET in kinds and pictures:
                open_, close = (nodes.raw("", tag, format="html") for tag in ("<noscript>", "</noscript>"))
                kinds[WIDGET] += [open_, *(node.deepcopy() for node in pictures[0].children), close]


class Marks(SphinxPostTransform):
    """Put the marks after a formula, and an opening bracket before it, into one span with it, which `book.css` does not break."""

    default_priority = 900  # when the texts are what they will be

    def run(self, **kwargs) -> None:
        for formula in list(self.document.findall(nodes.math)):
            parent, at = formula.parent, formula.parent.index(formula)
            before, after = (parent[n].astext() if 0 <= n < len(parent) and isinstance(parent[n], nodes.Text) else "" for n in (at - 1, at + 1))
            opening, closing = re.search(r"[(\[“]*$", before).group(), re.match(r"[^\w\s(\[“]*", after).group()
            if opening or closing:
                parent[at] = nodes.inline("", "", nodes.Text(opening), formula, nodes.Text(closing), classes=["unbroken"])
            if opening:
                parent[at - 1] = nodes.Text(before.removesuffix(opening))
            if closing:
                parent[at + 1] = nodes.Text(after.removeprefix(closing))


def list_items(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Give bibliography entries the role `listitem`."""
    if 'role="doc-biblioentry"' in context.get("body", ""):
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict:
    app.add_post_transform(Pictures)
    app.add_post_transform(Marks)
    app.connect("html-page-context", list_items)
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
