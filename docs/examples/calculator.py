"""Feedback from running code: what one stream writes is run the moment it is whole, and what came of it is read back.

Only arithmetic is run here. Whoever runs more puts it into a sandbox.

    python docs/examples/calculator.py http://127.0.0.1:8000
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable
from typing import Any

import anyio

import braid.client

TOPOLOGY = {
    "decoding": "views",
    "streams": {
        "user": {"direction": "input", "feed": "burst"},
        "result": {"direction": "input", "feed": "burst"},
        "code": {
            "direction": "output",
            "visibility": "internal",
            "wait_k": "end",
            "max_tokens": 24,
            "instructions": "Write the calculation that answers the user, in numbers.",
            "grammar": {"regex": r"[0-9]{1,4}( [-+*] [0-9]{1,4}){1,3} ="},
        },
        "output": {
            "direction": "output",
            "trigger": {"on": "result"},
            "max_tokens": 32,
        },
    },
    "tool_flows": [["code", "result"]],
}
OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def calculate(expression: str) -> int:
    """The value of sums, differences and products of numbers; nothing else is run."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise SyntaxError(f"{ast.unparse(node)} is no arithmetic")

    return value(ast.parse(expression, mode="eval").body)


async def main(url: str) -> dict[str, str]:
    """Ask; run what the code stream writes; print the answer."""
    async with (
        braid.client.connect(url) as client,
        client.open(topology=TOPOLOGY, show="all") as session,
    ):
        await session.write("user", "A box holds 12 eggs. How many eggs are in 7 boxes?")
        await session.end("user")
        code, ran = "", False
        async for message in session:
            if message.type == "delta" and message.stream == "code":
                code += message.text
                if code.endswith("=") and not ran:
                    ran = True
                    found = f"{code} {calculate(code.removesuffix('='))}"
                    print(f"[ran: {found}]")
                    await session.write("result", f" The result: {found}. ")
                    await session.end("result")
            elif message.type == "delta":
                print(message.text, end="", flush=True)
            elif message.type == "turn" and session.text("output"):
                break
        return {"code": code, "output": session.text("output")}


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
