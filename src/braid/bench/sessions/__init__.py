"""`braid bench sessions`: what many sessions cost, beside stock `transformers` and vLLM on the same work."""
