"""From documents to batches: host only, numpy only."""
