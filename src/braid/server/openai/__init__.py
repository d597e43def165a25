"""What OpenAI's clients speak, over sessions of any topology.

    shapes ── a request ──▶ messages (a chat becomes streams) ──▶ plans (streams, sampling, grammar)
                                                                        │
    chat, completions, responses ◀── parts (text, thoughts, calls) ── answers (one session a choice)

`streaming` writes server-sent events; `toolcalls` finds calls in text, `toolprompt` asks for them.
"""
