"""The start: an ordinary agent. Thought, call and answer are one text, one after the other.

braid serve &
python docs/examples/three_steps/one_stream.py http://127.0.0.1:8000
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from typing import Any

from figures import Figures
from openai import OpenAI

QUESTION = (
    "My sister and I are on our way to Paris for a long weekend, and we would like to walk along the river "
    "all day. What is the weather in Paris?"
)
EXAMPLE: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": "Thought: I need the weather in Rome. Call: weather(Rome)"},
    {"role": "user", "content": "Result: Rome: rain, 15 degrees."},
    {"role": "assistant", "content": "Answer: It rains in Rome, at 15 degrees."},
]
CALL = re.compile(r"Call: weather\((.+?)\)")


def weather(city: str) -> str:
    """Somebody else's slow service."""
    time.sleep(1)
    return f"Result: {city}: sun, 21 degrees."


def main(url: str) -> Figures:
    """Ask, call, answer."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    settings: dict[str, Any] = {"model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 60}
    # A server in use has read the example before.
    client.chat.completions.create(messages=[*EXAMPLE, {"role": "user", "content": "Hello!"}], **settings)
    messages = [*EXAMPLE, {"role": "user", "content": QUESTION}]
    figures, count = Figures(url), itertools.count()
    figures.question_ended()
    while True:
        said = ""
        for chunk in client.chat.completions.create(messages=messages, stream=True, **settings):
            if piece := chunk.choices[0].delta.content:
                said += piece
                figures.answer_began() if said.startswith("Answer") else figures.said(next(count))
        print(said)
        call = CALL.search(said)
        if call is None:
            return figures
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": weather(call[1])}]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
