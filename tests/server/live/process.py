"""A server in a process of its own, over an engine that says long texts slowly; tests kill it.

python -m tests.server.live.process PORT DATABASE SECONDS_PER_STEP
"""

from __future__ import annotations

import sys
import time

from braid.engine.admission import EngineLimits
from braid.engine.backend import Item
from braid.server.app import build_app
from braid.server.run import Server, listener_of
from tests.server.serving import null_engine, null_model, test_settings

ANSWER = "".join(f"{number} is followed by {number + 1}. " for number in range(6))
CALL = '{"name": "add", "arguments": {"a": 2, "b": 3}}'


def main(port: int, database: str, pause_s: float) -> None:
    def wait(_item: Item) -> None:
        time.sleep(pause_s)

    script = {"output": [ANSWER] * 5, "thought": [ANSWER] * 5, "tool_call": [CALL]}
    engine = null_engine(script=script, fail=wait, limits=EngineLimits(max_sessions=300))
    settings = test_settings(database=database, max_sessions=300)
    app = build_app(engine, settings, null_model())
    Server(listener_of(app, settings, port=port, lifespan="on")).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
