"""Where the text of an input stream comes from: given whole, typed at a pace, or arriving through a pipe."""

from __future__ import annotations

import codecs
import math
import threading
from collections.abc import AsyncGenerator, Callable

import anyio
import anyio.from_thread
import anyio.lowlevel

from braid.errors import InputError
from braid.streams.text import Codec, IncrementalTokenizer

__all__ = ["Feed", "arriving", "typed", "whole"]

Feed = AsyncGenerator[str, None]
"""Pieces of text, each at its time; when they end, so does the input."""


async def whole(text: str) -> Feed:
    """All of a text at once."""
    yield text


async def typed(text: str, codec: Codec, tokens_per_s: float) -> Feed:
    """A text as a person types it: token by token, at a steady pace.

    Args:
        text: All of it.
        codec: The tokenizer by which the pace is counted.
        tokens_per_s: The pace; above 0.

    Raises:
        InputError: The pace is not above 0.
    """
    if not (0 < tokens_per_s < math.inf):
        raise InputError(f"a pace of {tokens_per_s} tokens a second types nothing; give a number above 0")
    tokenizer = IncrementalTokenizer(codec)
    pieces = [*tokenizer.write(text), *tokenizer.flush()]
    began = anyio.current_time()
    for number, (_, piece) in enumerate(pieces):
        # By the clock and not by the length of a nap, so that small delays do not add up.
        await anyio.sleep_until(began + number / tokens_per_s)
        if piece:
            yield piece


async def arriving(read: Callable[[], bytes], name: str = "standard input") -> Feed:
    """UTF-8 text as it arrives, characters whole.

        a daemon thread: read() ──bytes──▶ event loop: decode ──▶ pieces

    The thread is a daemon, because a read that nobody answers cannot be broken off: the process must be able to end
    while it waits.

    Args:
        read: Returns the next bytes as soon as there are any; none at the end. It is called in a thread of its own.
        name: What is read, for messages.

    Raises:
        InputError: The bytes are not UTF-8, or cannot be read.
    """
    send, receive = anyio.create_memory_object_stream[bytes | OSError](math.inf)
    token = anyio.lowlevel.current_token()

    def post(item: bytes | OSError) -> None:
        anyio.from_thread.run_sync(send.send_nowait, item, token=token)

    def pump() -> None:
        try:
            while chunk := read():
                post(chunk)
            post(b"")
        except OSError as error:
            post(error)
        except (anyio.BrokenResourceError, anyio.RunFinishedError, anyio.ClosedResourceError):
            return  # nobody listens any more

    decoder = codecs.getincrementaldecoder("utf-8")()
    num_read = 0
    with send, receive:
        threading.Thread(target=pump, name="braid-arriving", daemon=True).start()
        while True:
            chunk = await receive.receive()
            if isinstance(chunk, OSError):
                raise InputError(f"{name} cannot be read: {chunk.strerror}") from chunk
            held = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                where = num_read - held + error.start
                raise InputError(
                    f"{name} is not UTF-8 text: {error.reason} at byte {where}; convert it first"
                ) from None
            num_read += len(chunk)
            if text:
                yield text
            if not chunk:
                return
