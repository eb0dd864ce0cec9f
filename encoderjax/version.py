"""The version, alone in its file so that the build reads it without importing jax."""

VERSION = "0.1.0"
