"""Scenarios of many requests at once, for `scripts/bench-load`: over HTTP, on loopback, bounded."""
