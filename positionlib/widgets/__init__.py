"""Widgets of the chapters and the figures' style; each name is loaded on first use (anywidget and matplotlib stay optional)."""

from importlib import import_module

_HOME = {
    "Control": "explorer",
    "Explorer": "explorer",
    "show": "style",
    "use_style": "style",
    "addition_heatmap": "addition",
    "backend_admission": "admission",
    "bucket_plot": "buckets",
    "row_coverage": "coverage",
    "rotation_dial": "dial",
    "failure_explorer": "failures",
    "graph_move": "graph_move",
    "grid_traversal": "grid_traversal",
    "sinusoidal_heatmap": "heatmap",
    "insertion_map": "insertion",
    "call_inspector": "inspector",
    "invariance_explorer": "invariance",
    "layout_explorer": "layouts",
    "ledger_calculator": "ledger",
    "shape_ledger": "lengths",
    "migration_stepper": "migration",
    "nope_depth": "nope_depth",
    "offset_tiles": "offsets",
    "packed_rows": "packed",
    "padding_policies": "padding",
    "permutation_proof": "permutation",
    "precision_collisions": "precision",
    "property_bench": "properties",
    "relation_classes": "relations",
    "relative_shift_stepper": "relative_shift",
    "route_tracer": "routes",
    "shift_rotation": "shift",
    "alibi_slopes_plot": "slopes",
    "term_mixer": "term_mixer",
    "tile_stepper": "tiles",
    "row_transport": "transport",
    "odometer": "wheels",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
