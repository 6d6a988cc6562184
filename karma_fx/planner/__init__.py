"""Decides: from costs alone, without touching a graph."""
