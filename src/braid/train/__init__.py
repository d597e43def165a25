"""Training on top of the `transformers` Trainer: row tables in, checkpoints that `braid.load` reads out.

RowTable ── queries ──▶ Queries ── packing ──▶ a batch of flat tensors and a plan ──▶ StreamNetwork ──▶ loss
"""
