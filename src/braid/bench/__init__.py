"""Measurements: each runs in one go, side by side, and ends with a line of JSON."""
