"""Training data for streams: what is said when, in which stream. No torch."""
