"""One look for every figure: colours that hold on a light page, on a dark page, in greyscale and on a narrow screen."""

from __future__ import annotations

import base64
import io

# Nine equal steps of CIE Lab distance, lightness rising all the way: the order survives greyscale.
SEQUENTIAL = ("#392658", "#3e4f84", "#3b729f", "#3693af", "#55aaa8", "#6cc19f", "#99d193", "#c6e085", "#efee75")
# Blue below zero, grey at zero, yellow above; lightness rises from the lowest to the highest value.
DIVERGING = ("#073b74", "#37517f", "#56678a", "#737c8f", "#8f9194", "#b0a394", "#cfb693", "#e8d199", "#ffeea1")
# Curves: apart for the common kinds of colour blindness, contrast above 3 : 1 on white and on PAPER_DARK.
CYCLE = ("#2f7fc1", "#c8641a", "#1f8f6b", "#b0559b", "#8a7a1c", "#7d7f86")
DASHES = ("solid", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (1, 1)))
INK, PAPER, PAPER_DARK = "#5f6570", "#ffffff", "#14181e"


def colour_map(scale: str):
    """The matplotlib colour map of a scale, "sequential" or "diverging"."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(f"positionlib-{scale}", {"sequential": SEQUENTIAL, "diverging": DIVERGING}[scale])


def settings() -> dict:
    """The matplotlib settings of every figure: transparent paper, mid-grey ink, 6.4 inches wide."""
    from cycler import cycler

    return {
        "figure.figsize": (6.4, 3.4), "figure.dpi": 110, "savefig.dpi": 110, "figure.constrained_layout.use": True,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "svg.hashsalt": "positionlib",
        "font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 12, "axes.labelsize": 11, "legend.fontsize": 10,
        "xtick.labelsize": 10, "ytick.labelsize": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK,
        "xtick.color": INK, "ytick.color": INK, "axes.titlecolor": INK, "legend.frameon": False, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": False, "grid.color": INK, "grid.alpha": 0.25, "lines.linewidth": 2.0,
        "axes.prop_cycle": cycler(color=CYCLE) + cycler(linestyle=DASHES),
    }


def use_style() -> None:
    """Use the book's style for every later figure, and register both colour maps (``cmap="positionlib-diverging"``)."""
    import matplotlib
    from matplotlib import colormaps, rcParams

    matplotlib.use("agg")
    rcParams.update(settings())
    for scale in ("sequential", "diverging"):
        colormaps.register(colour_map(scale), force=True)
    rcParams["image.cmap"] = "positionlib-sequential"


def png(figure) -> bytes:
    """The figure as PNG bytes that depend on nothing but the figure: no date, no version of any program."""
    from PIL import Image

    full = io.BytesIO()
    figure.savefig(full, format="png", metadata={"Software": None})
    small = io.BytesIO()
    Image.open(full).quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()


def show(figure, alt: str) -> None:
    """Display a figure as PNG; its text form, and on the book's pages its alt text, is ``alt``: the finding in one sentence."""
    from IPython.display import display

    from positionlib.errors import require

    require(bool(alt and alt.strip()), "alt", alt, "a sentence that says the finding", "Say what the figure shows.")
    display({"image/png": base64.b64encode(png(figure)).decode("ascii"), "text/plain": alt}, raw=True)
    figure.clear()
