"""Braid: a language model that reads, thinks and answers at the same time."""
