"""Widgets of the chapters and the figures' style; each name is loaded on first use (anywidget and matplotlib stay optional)."""

from importlib import import_module

_HOME = {
    "Explorer": "explorer", "Control": "explorer", "use_style": "style", "show": "style",
    "sinusoidal_heatmap": "heatmap", "permutation_proof": "permutation", "precision_collisions": "precision",
    "bucket_plot": "buckets", "alibi_slopes_plot": "slopes", "call_inspector": "inspector",
    "shift_rotation": "shift", "invariance_explorer": "invariance", "offset_tiles": "offsets", "tile_stepper": "tiles", "relation_classes": "relations",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
