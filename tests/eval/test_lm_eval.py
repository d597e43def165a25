"""lm-eval itself runs tasks on a Braid model; none of them is fetched."""

from __future__ import annotations

import importlib
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from braid.eval import lm
from braid.eval.lm import BraidLM
from braid.streams.stream_spec import StreamSpec
from braid.streams.topology import Topology
from tests.engine.harness import stock
from tests.eval.test_lm import LETTERS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

DOCUMENTS = [{"question": "Who?", "answer": "aaa"}, {"question": "Why?", "answer": "aa"}]


def task(data: Path, name: str, kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(data.parent / "cache")},
        "test_split": "test",
        "output_type": kind,
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        **changes,
    }


@pytest.fixture(scope="module")
def lm_eval() -> Any:
    """What only `make slow` installs; without it this fails, so that nobody takes it for tested."""
    with warnings.catch_warnings():  # what its own dependencies warn of at import is not ours
        warnings.simplefilter("ignore")
        return importlib.import_module("lm_eval")


def test_tasks_of_every_kind_run_on_the_output(tmp_path: Path, lm_eval: Any) -> None:
    lm.register.cache_clear()  # another test may have registered it with a lm-eval that is not the real one
    data = tmp_path / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    exact = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    accuracy = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    bits = [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}]
    tasks = [
        task(
            data,
            "said",
            "generate_until",
            generation_kwargs={"until": ["b"], "max_gen_toks": 3},
            metric_list=exact,
        ),
        task(
            data,
            "chosen",
            "multiple_choice",
            doc_to_choice=["aa", "zz"],
            doc_to_target=0,
            metric_list=accuracy,
        ),
        task(
            data,
            "read",
            "loglikelihood_rolling",
            doc_to_text="",
            doc_to_target="{{question}}",
            metric_list=bits,
        ),
    ]
    model = stock()
    letters = Topology(decoding="views", streams={"user": StreamSpec(direction="input"), "output": LETTERS})
    bare = BraidLM(model, letters, is_bare=True)
    found = lm_eval.simple_evaluate(model=bare, tasks=tasks, bootstrap_iters=0, log_samples=True)
    assert found["results"]["said"]["exact_match,none"] == 0.5  # of "aaa" and "aa", with three tokens to say
    questions = [document["question"] for document in DOCUMENTS]
    scored = lm.Likelihood(model, letters, is_bare=True)
    pairs = [(question, f" {choice}") for question in questions for choice in ("aa", "zz")]
    told = [response[0][0] for sample in found["samples"]["chosen"] for response in sample["resps"]]
    assert told == pytest.approx([logprob for logprob, _ in scored.of(pairs)])
    nats = sum(scored.of_whole(questions))
    bytes_read = sum(map(len, questions))
    assert found["results"]["read"]["bits_per_byte,none"] == pytest.approx(-nats / bytes_read / math.log(2))
