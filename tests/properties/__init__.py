"""Laws that every mechanism obeys, over generated geometries. A new mechanism is one entry of ``mechanisms.py``."""
