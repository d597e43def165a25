"""The yardsticks of `braid bench sessions`: the work is what it says, and stock figures are of stock generation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.bench.sessions.contenders import SessionFigures, StockSessions, committed_vllm, read_vllm
from braid.bench.sessions.workload import Dialogue, Workload, sessions_workload, system_prompt, ten_turns
from braid.errors import InputError, UnsupportedModelError
from braid.model.chat import ChatFormat
from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from tests.fakes import byte_tokenizer, gpt2_tokenizer, sentencepiece_tokenizer
from tests.model.folders import edit_json, save_tiny

SYSTEM = 100
OUTPUT = 6
LAYERS, KV_HEADS, WIDTH, ITEM = 2, 2, 16, 8
"""Of the tiny model, and of float64."""

FIGURES = SessionFigures(4, 1.5, 2.0, 3.75, 512, 900, 4096, 136.5, 254.0, [[1, 2], [3, 4], [5, 6], [7, 8]])


@pytest.fixture(scope="module")
def codec() -> TokenizerCodec:
    return TokenizerCodec(byte_tokenizer())


@pytest.fixture(scope="module")
def work(codec: TokenizerCodec) -> Workload:
    return sessions_workload(codec, 4, system_tokens=SYSTEM, output_tokens=OUTPUT)


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory, work: Workload) -> tuple[Path, list[list[int]]]:
    """A model's folder, and its answers by argmax without a cache. It calls the first token drawn an end token."""
    path = tmp_path_factory.mktemp("model")
    network = save_tiny(path).double()
    answers: list[list[int]] = []
    for prompt in work.prompt_ids:
        ids = list(prompt)
        for _ in range(OUTPUT):
            with torch.inference_mode():
                ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
        answers.append(ids[len(prompt) :])
    edit_json(path / "generation_config.json", eos_token_id=answers[0][0])
    return path, answers


@pytest.fixture(scope="module")
def stock(greedy: tuple[Path, list[list[int]]]) -> Any:
    with StockSessions(str(greedy[0]), torch.float64, 1) as process:
        yield process


def test_the_process_is_stock(stock: StockSessions) -> None:
    assert stock.versions["torch"] == torch.__version__
    assert stock.versions.keys() == {"torch", "transformers"}


@pytest.mark.parametrize("mode", ["one_by_one", "batched"])
def test_stock_answers_are_greedy_and_end_tokens_end_nothing(
    mode: str, stock: StockSessions, work: Workload, greedy: tuple[Path, list[list[int]]]
) -> None:
    assert len({len(ids) for ids in work.prompt_ids}) > 1, "something must be padded"
    figures: SessionFigures = getattr(stock, mode)(work)
    assert figures.output_ids == greedy[1]
    assert (figures.sessions, figures.output_tokens) == (4, 4 * OUTPUT)
    assert figures.prefill_tokens == sum(map(len, work.prompt_ids))
    assert figures.prefill_s > 0 < figures.decode_s
    assert figures.prefill_s + figures.decode_s <= figures.total_s
    assert figures.tokens_per_s == pytest.approx(4 * OUTPUT / figures.total_s)
    assert figures.decode_tokens_per_s == pytest.approx(4 * (OUTPUT - 1) / figures.decode_s)


def test_a_batch_keeps_its_padding_and_single_calls_keep_one_cache(
    stock: StockSessions, work: Workload
) -> None:
    tokens = max(map(len, work.prompt_ids)) + OUTPUT - 1  # the last token drawn is never fed
    one = 2 * LAYERS * KV_HEADS * WIDTH * ITEM * tokens
    assert stock.one_by_one(work).peak_kv_bytes == one
    assert stock.batched(work).peak_kv_bytes == 4 * one


def test_one_token_each_is_all_prefill(stock: StockSessions, work: Workload) -> None:
    figures = stock.batched(replace(work, output_tokens=1))
    assert (figures.output_tokens, figures.decode_s, figures.decode_tokens_per_s) == (4, 0.0, 0.0)


def test_a_dialogue_prefills_the_whole_conversation_each_turn(
    stock: StockSessions, codec: TokenizerCodec, greedy: tuple[Path, list[list[int]]]
) -> None:
    talk = Dialogue("Be brief.", ("Hello.", "Who are you?", "Goodbye."), 5)
    figures = stock.dialogue(talk)
    messages = [{"role": "system", "content": talk.system}]
    lengths: list[int] = []
    for user, answer in zip(talk.users, figures.answers, strict=True):
        messages.append({"role": "user", "content": user})
        lengths.append(len(codec.encode_template(codec.render_chat(messages, answer_next=True))))
        messages.append({"role": "assistant", "content": answer})
    assert figures.prompt_tokens == lengths
    assert figures.prefill_tokens == sum(lengths)


def test_an_end_token_ends_an_answer_of_a_dialogue(
    stock: StockSessions, work: Workload, greedy: tuple[Path, list[list[int]]], codec: TokenizerCodec
) -> None:
    (first, *_), *_ = greedy[1]
    answer = stock.dialogue(Dialogue(work.system, (work.users[0],), OUTPUT)).answers[0]
    assert answer == codec.decode([first])


def test_a_model_that_transformers_cannot_run_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with (
        pytest.raises(UnsupportedModelError, match=r"config\.json.*so sessions have nothing"),
        StockSessions(str(tmp_path), torch.float32, 1),
    ):
        pass


def test_a_process_that_fails_at_work_says_why_and_goes(
    greedy: tuple[Path, list[list[int]]], work: Workload
) -> None:
    with StockSessions(str(greedy[0]), torch.float32, 1) as process:
        for _ in range(2):  # the second time it is gone before it is asked
            with pytest.raises(UnsupportedModelError, match="so sessions have nothing"):
                process.one_by_one(replace(work, prompt_ids=((10**6,),)))
    assert process._process.returncode is not None


def test_prompts_are_the_chat_template_s(codec: TokenizerCodec, work: Workload) -> None:
    for user, ids in zip(work.users, work.prompt_ids, strict=True):
        asked = [{"role": "system", "content": work.system}, {"role": "user", "content": user}]
        assert list(ids) == codec.encode_template(codec.render_chat(asked, answer_next=True))


def test_prompts_of_a_model_without_a_template_are_plain(codec: TokenizerCodec) -> None:
    bare = TokenizerCodec(byte_tokenizer(template=None))
    work = sessions_workload(bare, 1, system_tokens=SYSTEM)
    assert bare.decode(work.prompt_ids[0]) == ChatFormat.bare(bare, work.system).preamble() + work.users[0]


def test_questions_differ_and_few_are_the_first_of_many(codec: TokenizerCodec) -> None:
    many = sessions_workload(codec, 256, system_tokens=SYSTEM)
    assert len(set(many.users)) == 256
    few = sessions_workload(codec, 5, system_tokens=SYSTEM)
    assert few.prompt_ids == many.prompt_ids[:5]
    assert few.digest != many.digest
    assert few.digest == sessions_workload(codec, 5, system_tokens=SYSTEM).digest
    assert few.digest != replace(few, output_tokens=1).digest


@pytest.mark.parametrize("sessions", [0, -1, 257])
def test_sessions_without_a_question_are_refused(codec: TokenizerCodec, sessions: int) -> None:
    with pytest.raises(InputError, match="1 to 256"):
        sessions_workload(codec, sessions, system_tokens=SYSTEM)


def test_answers_without_a_token_are_refused(codec: TokenizerCodec) -> None:
    with pytest.raises(InputError, match="at least one"):
        sessions_workload(codec, 1, system_tokens=SYSTEM, output_tokens=0)


@given(
    tokens=st.integers(80, 900),
    make=st.sampled_from([byte_tokenizer, gpt2_tokenizer, sentencepiece_tokenizer]),
)
def test_a_system_prompt_is_as_long_as_it_can_be(tokens: int, make: Any) -> None:
    codec = TokenizerCodec(make())
    size = len(codec.encode(system_prompt(codec, tokens))[0])
    assert tokens - 2 < size <= tokens


@pytest.mark.parametrize("tokens", [0, 5, 10**6])
def test_system_prompts_that_cannot_be_had_are_refused(codec: TokenizerCodec, tokens: int) -> None:
    with pytest.raises(InputError, match=f"not {tokens}"):
        system_prompt(codec, tokens)


def test_the_default_model_gets_512_tokens_in_common_and_short_questions(smollm2: Model) -> None:
    work = sessions_workload(smollm2.codec, 16)
    assert work.system_tokens == 512
    assert work.output_tokens == 128
    assert {24 <= len(smollm2.codec.encode(user)[0]) <= 32 for user in work.users} == {True}
    asked = [{"role": "system", "content": work.system}, {"role": "user", "content": work.users[3]}]
    plain = smollm2.codec.hf.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)
    assert list(work.prompt_ids[3]) == plain["input_ids"]
    talk = ten_turns(smollm2.codec)
    assert (talk.system, len(set(talk.users))) == (work.system, 10)


def test_figures_go_through_json_whole() -> None:
    data = json.loads(json.dumps(FIGURES.to_dict(with_output=True)))
    assert SessionFigures.from_dict(data) == FIGURES
    assert FIGURES.to_dict().keys() == data.keys() - {"output_ids"}


@pytest.mark.parametrize("change", [{"speed": 1}, {"sessions": None}])
def test_figures_that_are_not_a_run_s_are_refused(change: dict[str, Any]) -> None:
    data = {**FIGURES.to_dict(with_output=True), **change}
    data = {name: value for name, value in data.items() if value is not None}
    with pytest.raises(InputError, match=next(iter(change))):
        SessionFigures.from_dict(data)


def test_vllm_s_figures_are_only_for_the_work_that_they_were_measured_on(
    tmp_path: Path, work: Workload
) -> None:
    run = {"digest": work.digest, "figures": FIGURES.to_dict(with_output=True)}
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps({"model": "tiny", "machine": {"cpu": "any"}, "runs": {"4": run}}))
    found = read_vllm(path)
    assert found.of(work) == FIGURES
    assert found.of(replace(work, output_tokens=7)) is None
    assert found.of(replace(work, prompt_ids=work.prompt_ids[:1])) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model": "m", "machine": {}, "runs": {"4": {"digest": "a"}}}']
)
def test_a_file_without_vllm_s_figures_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bench/vllm/README\.md"):
        read_vllm(path)
    with pytest.raises(InputError, match="FileNotFoundError"):
        read_vllm(tmp_path / "nothing.json")


def test_the_committed_figures_of_vllm_are_of_today_s_work(smollm2: Model) -> None:
    path = committed_vllm("smollm2-135m")
    assert path is not None
    found = read_vllm(path)
    assert found.model == "smollm2-135m"
    for sessions in (1, 4, 16):
        work = sessions_workload(smollm2.codec, sessions)
        figures = found.of(work)
        assert figures is not None, "the work has changed: measure vLLM again"
        assert [len(ids) for ids in figures.output_ids] == [work.output_tokens] * sessions
    for run in json.loads(path.read_text())["runs"].values():
        for step in run["rounds"]["decode_step_ms"]:
            assert step["median"] < 1.5 * step["min"], "the machine was not idle: measure vLLM again"
    assert found.machine.keys() >= {"cpu", "cores", "threads", "torch", "vllm", "date"}
    assert committed_vllm("no-such-model") is None
