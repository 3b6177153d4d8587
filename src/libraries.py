"""Run the stage `software` by its former name: `python -m src.libraries`."""

from __future__ import annotations

import sys

from src.software import main

if __name__ == "__main__":
    sys.exit(main())
