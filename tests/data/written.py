"""Steps as they are written down."""

from __future__ import annotations

import re
from collections.abc import Iterable

from braid.data.stories.story import is_held_out_pair


def held_out_steps(texts: Iterable[str]) -> list[str]:
    """The sums and differences in some texts that training leaves out, whatever result is written for them."""
    pairs = [found for text in texts for found in re.findall(r"(\d+)([-+])(\d+)=\d*;?", text)]
    return [f"{a}{sign}{b}" for a, sign, b in pairs if is_held_out_pair(int(a), sign, int(b))]
