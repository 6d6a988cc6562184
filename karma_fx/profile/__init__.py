"""Measures what operations and links cost on this machine."""
