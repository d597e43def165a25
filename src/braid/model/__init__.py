"""Models: fetched and loaded, refused where they cannot be served rightly, and made to attend by spans.

A `Model` is a network that `transformers` built, unedited, with one attention function of ours, its tokenizer, and
what it was trained with. What each token of a forward reads is a plan in tensors.
"""

from __future__ import annotations

from braid.model.codec import TokenizerCodec
from braid.model.loading import ensure_local, load
from braid.model.machine import MachineChoice
from braid.model.model import Model
from braid.model.progress import Progress

__all__ = ["MachineChoice", "Model", "Progress", "TokenizerCodec", "ensure_local", "load"]
