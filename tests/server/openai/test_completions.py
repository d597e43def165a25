"""`/v1/completions` by the official client, over scripted speech."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from braid.server.openai.replies import Completion
from tests.server.openai.talking import serving, talking

SAID = " there was a 🐈."


def test_a_text_goes_on() -> None:
    with talking(SAID) as client:
        answer = client.completions.create(model="null", prompt="Once", max_tokens=40)
        assert answer.choices[0].text == SAID
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 4
        cut = client.completions.create(model="null", prompt="Once")
        assert (cut.choices[0].text, cut.choices[0].finish_reason) == (" there was a " + "\ufffd", "length")


def test_a_text_goes_on_as_it_comes() -> None:
    with talking(SAID) as client:
        asked: Any = {"model": "null", "prompt": "Once", "max_tokens": 40, "echo": True}
        chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Once" + SAID
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("prompt", [["a", "b"], [[97], [98]]])
def test_several_prompts(prompt: Any) -> None:
    with talking(SAID) as client:
        answer = client.completions.create(model="null", prompt=prompt, n=2, echo=True, max_tokens=40)
    assert [choice.text for choice in answer.choices] == [f"a{SAID}"] * 2 + [f"b{SAID}"] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2


def test_logprobs_have_the_old_shape() -> None:
    with talking(SAID) as client:
        answer = client.completions.create(model="null", prompt="Once", max_tokens=5, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == list(SAID[:5])
    assert logprobs.text_offset == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": ["a"] * 200}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_bad_request_is_told_which_field(body: dict[str, Any], param: str) -> None:
    with serving(SAID) as server:
        asked = {"model": "null", "prompt": "Once", **body}
        answer = httpx.post(f"{server.base_url}/v1/completions", json=asked)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param), answer.text


def test_the_answer_is_what_the_document_says() -> None:
    with serving(SAID) as server:
        asked = {"model": "null", "prompt": "Once", "logprobs": 1}
        Completion.model_validate(httpx.post(f"{server.base_url}/v1/completions", json=asked).json())
