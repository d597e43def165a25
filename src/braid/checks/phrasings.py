"""The texts of the code word cases: words, and ways to ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["PHRASINGS", "PLACES", "WORDS", "Phrasing", "Place"]

Place = Literal["thought", "typed"]
"""Where the word stands: in the thinker's stream, or typed by the user in the middle of the answer."""
PLACES: tuple[Place, ...] = ("thought", "typed")

WORDS = (
    "tiger", "banana", "violin", "copper", "planet", "lantern", "puzzle", "rocket", "saddle", "cactus", "pepper",
    "marble", "walnut", "falcon", "kettle", "anchor", "candle", "dragon", "castle", "diamond", "forest", "garden",
    "hammer", "island", "jacket", "ladder", "magnet", "needle", "pencil", "rabbit", "temple", "umbrella", "valley",
    "zebra", "camera", "feather", "guitar", "helmet", "lemon", "mirror", "piano", "tunnel", "velvet", "carpet",
)  # fmt: skip


@dataclass(frozen=True)
class Phrasing:
    """One way to ask; `{word}` stands in `reveal` alone."""

    question: str
    reveal: str
    answer: str
    """What is put into the writer's mouth: longer than the reveal, so that the word comes while it speaks."""


PHRASINGS: dict[Place, tuple[Phrasing, ...]] = {
    "thought": (
        Phrasing(
            "A colleague thinks aloud next to you and will mention a secret code word. Answer with the code word.",
            "Let me note this: the secret code word is {word}. I must tell it.\n",
            "I am listening to what my colleague says, and I will tell you at once. The code word is",
        ),
        Phrasing(
            "Someone beside you knows the password of the day. Listen, and then tell me the password.",
            "The password of the day is {word}. Everybody should know it.\n",
            "Of course. Just a moment, I have to listen to the person beside me first. The password of the day is",
        ),
        Phrasing(
            "Your notes will contain the name of the hidden object. Tell me its name.",
            "Note: the hidden object is called {word}. Remember that.\n",
            "Sure, I can help you with that; my notes are being written just now. The hidden object is called",
        ),
        Phrasing(
            "Which word did the teacher choose today? Look at the notes and tell me the word.",
            "Today the teacher chose the word {word}. That is the word.\n",
            "Good question! I have a look at the notes, so please wait a little. Today the teacher chose the word",
        ),
    ),
    "typed": (
        Phrasing(
            "I will tell you a code word soon. Then answer with the code word.",
            " The code word is {word}. Thank you.",
            "Sure, I am listening, and I will repeat it as soon as I have heard it. The code word is",
        ),
        Phrasing(
            "In a moment I will tell you today's password. Please repeat the password.",
            " Here it comes: the password is {word}.",
            "Of course. Take your time, I will repeat it as soon as you have told me. The password is",
        ),
        Phrasing(
            "I am thinking of the name of an object. When I say its name, repeat the name.",
            " The object is called {word}, by the way.",
            "I am happy to do that for you, and I am all ears. The object is called",
        ),
        Phrasing(
            "The teacher chooses a word every day. I will tell you the word of today; say it again.",
            " Today the teacher chose the word {word}.",
            "All right, let us do it like this, one thing after the other. Today the teacher chose the word",
        ),
    ),
}
