"""The jitted, sharded step, its state, and what keeps both alive."""
