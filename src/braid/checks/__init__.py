"""The invariants of the design, run on one given model, so that its user knows whether it is served rightly."""
