"""Print the work of `braid bench sessions` as JSON for run.py; runs in Braid's environment."""

from __future__ import annotations

import argparse
import json

from transformers import AutoTokenizer

from braid.bench.sessions.workload import sessions_workload
from braid.model.codec import TokenizerCodec
from braid.model.loading import ensure_local


def main() -> None:
    """Make the work of each number of sessions."""
    parser = argparse.ArgumentParser(description="Print the work of `braid bench sessions` as JSON.")
    parser.add_argument("--model", default="smollm2-135m", help="as `braid.load` takes it (smollm2-135m)")
    parser.add_argument("--sessions", default="1,4,16", help="how many at a time (1,4,16)")
    options = parser.parse_args()
    folder = ensure_local(options.model)
    codec = TokenizerCodec(AutoTokenizer.from_pretrained(folder))
    works = [sessions_workload(codec, int(count)).to_dict() for count in options.sessions.split(",")]
    print(json.dumps({"model": options.model, "folder": str(folder), "works": works}))


if __name__ == "__main__":
    main()
