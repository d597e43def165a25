"""`python -m braid` is `braid`."""

from __future__ import annotations

from braid.cli import main

if __name__ == "__main__":
    main()
