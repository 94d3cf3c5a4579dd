"""Dependency-aware parallel decoding for masked diffusion language models."""
