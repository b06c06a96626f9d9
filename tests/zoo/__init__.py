"""Real models of other libraries, on which the analysis is tried: see `catalogue` and `check`."""
