"""Does this GPU compute what the CPU computes? `python -m pytest -m gpu -n 0`.

All random numbers are generated on the host from fixed seeds, so both devices get the same inputs.
"""
