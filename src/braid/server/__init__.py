"""The engine on the network: what OpenAI's clients speak, live sessions, and a playground.

    settings ▶ app ▶ middleware (who is calling) ▶ routes ▶ service ▶ Engine

`operations` is for whoever runs it. `openai` speaks chat completions, responses, completions and realtime; `live`
holds sessions that outlive connections and the server; `store` keeps them. Errors become answers in `errors`, alone.
"""
