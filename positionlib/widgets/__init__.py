"""Widgets of the chapters and the figures' style; each name is loaded on first use (anywidget and matplotlib stay optional)."""

from importlib import import_module

_HOME = {
    "Control": "explorer",
    "backend_admission": "admission",
    "Explorer": "explorer",
    "show": "style",
    "use_style": "style",
    "bucket_plot": "buckets",
    "row_coverage": "coverage",
    "graph_move": "graph_move",
    "grid_traversal": "grid_traversal",
    "sinusoidal_heatmap": "heatmap",
    "insertion_map": "insertion",
    "call_inspector": "inspector",
    "invariance_explorer": "invariance",
    "layout_explorer": "layouts",
    "migration_stepper": "migration",
    "nope_depth": "nope_depth",
    "offset_tiles": "offsets",
    "permutation_proof": "permutation",
    "precision_collisions": "precision",
    "property_bench": "properties",
    "relative_shift_stepper": "relative_shift",
    "route_tracer": "routes",
    "shift_rotation": "shift",
    "alibi_slopes_plot": "slopes",
    "term_mixer": "term_mixer",
    "tile_stepper": "tiles",
    "odometer": "wheels",
    "Explorer": "explorer", "Control": "explorer", "use_style": "style", "show": "style",
    "sinusoidal_heatmap": "heatmap", "permutation_proof": "permutation", "precision_collisions": "precision",
    "bucket_plot": "buckets", "alibi_slopes_plot": "slopes", "call_inspector": "inspector",
    "shift_rotation": "shift", "invariance_explorer": "invariance",
    "insertion_map": "insertion", "ledger_calculator": "ledger",
    "route_tracer": "routes", "addition_heatmap": "addition", "shift_rotation": "shift", "invariance_explorer": "invariance",
    "layout_explorer": "layouts", "rotation_dial": "dial", "shift_rotation": "shift", "invariance_explorer": "invariance",
    "shift_rotation": "shift", "invariance_explorer": "invariance", "row_coverage": "coverage", "migration_stepper": "migration", "padding_policies": "padding",
    "shift_rotation": "shift", "invariance_explorer": "invariance", "offset_tiles": "offsets", "tile_stepper": "tiles", "relation_classes": "relations",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
