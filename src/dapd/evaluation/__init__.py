"""Decoders side by side: scores, forward passes, fronts, and how well attention shows the true graph."""
