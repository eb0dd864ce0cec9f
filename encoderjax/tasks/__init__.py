"""What encoders are used for: texts to rows, and what is said of them, measured."""
