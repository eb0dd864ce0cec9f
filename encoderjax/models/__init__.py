"""Pure functions of parameters and a batch: the encoder, its parts and its heads."""
