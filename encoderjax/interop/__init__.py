"""Models from elsewhere and to elsewhere, and what loads any of them."""
