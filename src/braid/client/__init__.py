"""Talk with a Braid server: live sessions over a WebSocket. No torch.

`protocol` is what is said on the wire; for chat completions and responses, any OpenAI client does.
"""
