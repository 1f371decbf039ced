"""Benchmarks against peers: whole module against whole module, with the same converted weights (`make bench`)."""
