"""Builders: from ordinary data to scores. One file a kind of data."""
