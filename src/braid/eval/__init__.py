"""Evaluation: what streams brought, beside the same model without them.

problems ── play (the engine, many sessions at once) ──▶ plays ── grades ──▶ figures with intervals ──▶ report
"""
