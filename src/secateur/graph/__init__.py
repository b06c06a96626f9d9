"""One traced forward, and what it says about which positions must go together."""
