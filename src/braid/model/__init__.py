"""Models: fetched and loaded, refused where they cannot be served rightly, and made to attend by spans.

A `Model` is a network that `transformers` built, unedited, with one attention function of ours, its tokenizer, and
what it was trained with. What each token of a forward reads is a plan in tensors.

Names are imported when they are first used: the chat templates and the tokenizer need neither torch nor `transformers`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braid.model.codec import TokenizerCodec
    from braid.model.loading import ensure_local, load
    from braid.model.machine import MachineChoice
    from braid.model.model import Model
    from braid.model.progress import Progress

__all__ = ["MachineChoice", "Model", "Progress", "TokenizerCodec", "ensure_local", "load"]

_HOMES = {
    "MachineChoice": "machine",
    "Model": "model",
    "Progress": "progress",
    "TokenizerCodec": "codec",
    "ensure_local": "loading",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'braid.model' has no attribute {name!r}")
    return getattr(importlib.import_module(f"braid.model.{_HOMES[name]}"), name)
