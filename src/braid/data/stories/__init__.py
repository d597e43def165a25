"""Short word problems of our own: an endless, seeded source that needs no download."""

from braid.data.stories.story import SPLITS, Sentence, Split, Story, series, tell

__all__ = ["SPLITS", "Sentence", "Split", "Story", "series", "tell"]
