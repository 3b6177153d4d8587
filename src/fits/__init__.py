"""Say what fits into devices before anything runs: `python -m src.fits`."""
